// megamla doctor: what this build and machine support, op by op, and why not.
#include <omp.h>

#include <cstdlib>
#include <memory>

#include "command.hpp"
#include "core/tensor.hpp"
#include "cpu/gemm.hpp"
#include "cpu/simd/level.hpp"
#include "doctor/probes.hpp"
#include "gpu.hpp"
#include "options.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

// The GPU in words; what there is of it goes into the record.
std::string describe_gpu(nlohmann::json* machine) {
  try {
    gpu::require();
    const gpu::Card card = gpu::card();
    (*machine)["gpu"] = {{"card", card.name}, {"driver", card.driver}, {"cuda", card.cuda}};
    return fmt::format("{}, {} SMs, driver {}, runtime {}", card.name, card.multiprocessors, card.driver, card.cuda);
  } catch (const InputError& error) {
    (*machine)["gpu"] = nullptr;
    return fmt::format("{}; this build's runtime needs driver 580 or newer", error.what());
  }
}

int run(const JsonOption& json) {
  nlohmann::json machine = {{"threads", omp_get_max_threads()},
                            {"vector_code", cpu::simd_name()},
                            {"gemm", cpu::gemm_name(cpu::native_gemm_type())}};
  const char* limit = std::getenv("MEGAMLA_SIMD");
  fmt::print("megamla {}\nthreads: {}\nvector code: {}{}\nGEMMs on the CPU: {}{}\n", megamla_version(),
             omp_get_max_threads(), cpu::simd_name(),
             limit == nullptr || *limit == 0 ? "" : " (limited by MEGAMLA_SIMD)",
             cpu::gemm_name(cpu::native_gemm_type()),
             cpu::native_gemm_type() == cpu::GemmType::kBf16 ? "" : " (no bf16 products here: twice the time)");
  const std::string cuda = describe_gpu(&machine);
  fmt::print("GPU: {}\n", cuda);
  Table table({"op", "device", "implementation or reason"});
  nlohmann::json ops = nlohmann::json::array();
  for (const doctor::Probe& probe : doctor::probe_ops()) {
    table.add({probe.op, device_word(probe.device), probe.answer});
    ops.push_back({{"op", probe.op},
                   {"device", device_word(probe.device)},
                   {"supported", probe.supported},
                   {"answer", probe.answer}});
  }
  table.print();
  machine["ops"] = ops;
  json.write("doctor", machine);
  return kOk;
}

}  // namespace

Command doctor_command() {
  Command command;
  command.summary = "Say what this machine supports, op by op, and why not";
  command.examples =
      "Each op is asked with one token of 64 heads, an fp8_528 window and nvfp4_288 compressed rows.\n"
      "MEGAMLA_SIMD=avx512, avx2 or plain limits what every command uses of an x86-64 CPU.\n"
      "\n"
      "Examples:\n"
      "  megamla doctor\n"
      "  megamla doctor --json doctor.json";
  command.add = [](CLI::App& app) -> std::function<int()> {
    auto json = std::make_shared<JsonOption>();
    json->add(app);
    return [json] { return run(*json); };
  };
  return command;
}

}  // namespace megamla::app
