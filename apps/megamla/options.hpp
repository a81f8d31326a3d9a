// Options that several subcommands share, spelled and explained in one place.
#pragma once

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <string>

#include "megamla/types.h"

namespace megamla::app {

// Of an option: a number from `low` to `high`, which "nan" is not.
CLI::Validator number_in(double low, double high);

// --device auto|cpu|reference|cuda, --threads N.
struct DeviceOptions {
  std::string device = "auto";
  int threads = 0;

  void add(CLI::App& app);
  // With the device as asked for, AUTO included: an op resolves it from where its tensors are. CUDA: with the program's
  // stream; throws InputError if there is no GPU that the kernels run on.
  megamla_exec exec() const;
};

// "auto", "reference", "cpu", "cuda". Throws InputError for another word.
megamla_device parse_device(const std::string& word);
std::string device_word(megamla_device device);

// --json FILE: the printed tables as data; "-" is stdout. Not given: `write` does nothing.
struct JsonOption {
  std::string path;

  void add(CLI::App& app);
  // Adds "program", "version" and "command" to the object. Infinities and NaN become null. Throws InputError if the
  // file cannot be written.
  void write(const std::string& command, nlohmann::json record) const;
};

}  // namespace megamla::app
