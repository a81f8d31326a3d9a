// megamla: the library as a program. Every subcommand is in its own file; command.hpp lists them.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <map>

#include "command.hpp"
#include "cpu/simd/level.hpp"
#include "megamla/types.h"
#include "text.hpp"

namespace megamla::app {
namespace {

constexpr const char* kFooter =
    "Examples:\n"
    "  megamla check golden/                 every golden case of a folder, on this machine's default device\n"
    "  megamla check --device reference a.safetensors --json report.json\n"
    "  megamla COMMAND --help                options and examples of a subcommand\n"
    "\n"
    "Exit codes: 0 ok; 1 a result does not hold; 2 wrong arguments, or a file or device that cannot be used.\n"
    "Errors are one line on stderr: what, where, expected, found.";

std::string shown_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

int fail(const std::string& where, const std::string& message) {
  fmt::print(stderr, "{}: {}\n", where, one_line(message));
  return kUsage;
}

// "megamla" or "megamla check": what the user was calling when parsing failed.
std::string calling(const CLI::App& app) {
  std::string name = app.get_name();
  for (const CLI::App* sub : app.get_subcommands()) name += " " + sub->get_name();
  return name;
}

// The word where a subcommand is expected, if there is one and it is none.
void require_known(const CLI::App& app, int argc, char** argv) {
  if (argc < 2 || argv[1][0] == '-') return;
  std::string known;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (sub->get_name() == argv[1]) return;
    known += (known.empty() ? "" : ", ") + sub->get_name();
  }
  throw InputError(fmt::format("command: expected one of {}, found '{}'", known, argv[1]));
}

int run(int argc, char** argv) {
  CLI::App app("DeepSeek V4.1 mega attention: check, measure and run it.", "megamla");
  app.set_version_flag("--version", std::string("megamla ") + megamla_version());
  app.require_subcommand(1);
  app.footer(kFooter);
  std::map<const CLI::App*, std::function<int()>> bodies;
  const auto add = [&](const std::string& name, const Command& command) {
    CLI::App* sub = app.add_subcommand(shown_name(name), command.summary);
    sub->footer(command.examples);
    bodies[sub] = command.add(*sub);
  };
#define MEGAMLA_ADD_COMMAND(NAME) add(#NAME, NAME##_command());
  MEGAMLA_COMMANDS(MEGAMLA_ADD_COMMAND)
#undef MEGAMLA_ADD_COMMAND

  try {
    require_known(app, argc, argv);
    app.parse(argc, argv);
  } catch (const InputError& error) {
    return fail("megamla", error.what());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    const std::string where = calling(app);
    return fail(where, fmt::format("{} (see {} --help)", error.what(), where));
  }
  if (const Status limit = cpu::check_simd_limit(); !limit.ok()) return fail("megamla", limit.message());
  const CLI::App* chosen = app.get_subcommands().front();
  try {
    return bodies.at(chosen)();
  } catch (const std::exception& error) {
    return fail("megamla " + chosen->get_name(), error.what());
  }
}

}  // namespace
}  // namespace megamla::app

int main(int argc, char** argv) {
  try {
    return megamla::app::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "megamla: %s\n", error.what());
    return megamla::app::kUsage;
  }
}
