#include "options.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iostream>

#include "command.hpp"
#include "gpu.hpp"

namespace megamla::app {
namespace {

struct DeviceWord {
  const char* word;
  megamla_device device;
};
constexpr DeviceWord kDevices[] = {{"auto", MEGAMLA_DEVICE_AUTO},
                                   {"cpu", MEGAMLA_DEVICE_CPU},
                                   {"reference", MEGAMLA_DEVICE_REFERENCE},
                                   {"cuda", MEGAMLA_DEVICE_CUDA}};

}  // namespace

megamla_device parse_device(const std::string& word) {
  for (const DeviceWord& known : kDevices) {
    if (word == known.word) return known.device;
  }
  throw InputError(fmt::format("--device: expected auto, cpu, reference or cuda, found '{}'", word));
}

std::string device_word(megamla_device device) {
  for (const DeviceWord& known : kDevices) {
    if (device == known.device) return known.word;
  }
  return "?";
}

CLI::Validator number_in(double low, double high) {
  return CLI::Validator(
      [=](const std::string& text) {
        double value = 0;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        const bool holds = error == std::errc() && end == text.data() + text.size() && value >= low && value <= high;
        return holds ? std::string() : fmt::format("expected a number from {:g} to {:g}, got {}", low, high, text);
      },
      fmt::format("NUMBER in [{:g} - {:g}]", low, high));
}

void DeviceOptions::add(CLI::App& app) {
  app.add_option("--device", device, "auto, cpu, reference (double precision, plain loops) or cuda")
      ->type_name("DEVICE")
      ->capture_default_str();
  app.add_option("--threads", threads, "CPU threads; 0 = all cores. Results do not depend on it")
      ->type_name("N")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
}

megamla_exec DeviceOptions::exec() const {
  megamla_exec exec = MEGAMLA_EXEC_INIT;
  exec.device = parse_device(device);
  exec.num_threads = threads;
  if (exec.device == MEGAMLA_DEVICE_CUDA) {
    gpu::require();
    exec.stream = gpu::stream();
  }
  return exec;
}

void JsonOption::add(CLI::App& app) {
  app.add_option("--json", path, "also write the result as JSON to FILE ('-': stdout)")->type_name("FILE");
}

void JsonOption::write(const std::string& command, nlohmann::json record) const {
  if (path.empty()) return;
  record["program"] = "megamla";
  record["version"] = megamla_version();
  record["command"] = command;
  const std::string text = record.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (path == "-") {
    std::cout << text << std::flush;
    return;
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file)
    throw InputError(
        fmt::format("--json: {}: expected a file that can be written, found: {}", path, std::strerror(errno)));
}

}  // namespace megamla::app
