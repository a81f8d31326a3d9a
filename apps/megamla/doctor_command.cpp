// megamla doctor: what this build and machine support, op by op, and why not.
#include <omp.h>

#include <memory>

#include "command.hpp"
#include "core/tensor.hpp"
#include "cpu/gemm.hpp"
#include "doctor/probes.hpp"
#include "options.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

int run(const JsonOption& json) {
  nlohmann::json machine = {{"threads", omp_get_max_threads()}, {"gemm", cpu::gemm_name(cpu::native_gemm_type())}};
  fmt::print("megamla {}\nthreads: {}\nGEMMs on the CPU: {}{}\n", megamla_version(), omp_get_max_threads(),
             cpu::gemm_name(cpu::native_gemm_type()),
             cpu::native_gemm_type() == cpu::GemmType::kBf16
                 ? ""
                 : " (no AVX512-BF16 or AMX here: fp32 takes twice the time)");
#if MEGAMLA_HAVE_CUDA
  fmt::print("CUDA: in this build; its runtime needs driver 580 or newer and a GPU of compute capability 9.0\n");
  machine["cuda"] = true;
#else
  fmt::print("CUDA: not in this build (configured with MEGAMLA_CUDA=OFF, without nvcc, or without kernels)\n");
  machine["cuda"] = false;
#endif
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
