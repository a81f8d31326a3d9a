// Subcommands of the program. A new one is one line here and one file, <name>_command.cpp, that defines it.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>
#include <string>

// Names as in C++; '_' is shown as '-' on the command line.
#define MEGAMLA_COMMANDS(COMMAND) \
  COMMAND(bench) COMMAND(check) COMMAND(doctor) COMMAND(inspect) COMMAND(make_layer) COMMAND(replay)

namespace megamla::app {

// Exit codes of the program, the same for every subcommand.
enum Exit : int {
  kOk = 0,
  kFailed = 1,  // the program ran, and a result does not hold
  kUsage = 2,   // wrong arguments, or a file or device that cannot be used: one line on stderr says which
};

// Ends a subcommand with kUsage and this one line: what, where, expected, found.
class InputError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct Command {
  std::string summary;   // one line of `megamla --help`
  std::string examples;  // shown under the options of `megamla NAME --help`
  // Adds the options; the result runs once they are parsed and gives the exit code.
  std::function<std::function<int()>(CLI::App&)> add;
};

#define MEGAMLA_DECLARE_COMMAND(NAME) Command NAME##_command();
MEGAMLA_COMMANDS(MEGAMLA_DECLARE_COMMAND)
#undef MEGAMLA_DECLARE_COMMAND

}  // namespace megamla::app
