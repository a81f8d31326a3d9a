// megamla check: golden cases against this machine's implementations.
#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "check/check_file.hpp"
#include "command.hpp"
#include "options.hpp"
#include "text.hpp"

namespace megamla::app {
namespace {

using check::Report;
using check::Rule;

struct Options {
  std::vector<std::string> paths;
  DeviceOptions device;
  JsonOption json;
  bool rules = false;
};

// "0.43 of bound (lse)": the rule that came closest to its bound; "exact" where every rule is one of equality.
std::string closest(const check::Verdict& verdict) {
  const std::pair<const std::string, Rule>* worst = nullptr;
  for (const auto& entry : verdict.rules()) {
    if (!entry.second.exact && (worst == nullptr || entry.second.share > worst->second.share)) worst = &entry;
  }
  if (worst != nullptr) return fmt::format("{:.2f} of bound ({})", worst->second.share, worst->first);
  return verdict.rules().empty() ? "-" : "exact";
}

nlohmann::json as_json(const Report& report) {
  nlohmann::json rules = nlohmann::json::object();
  for (const auto& [name, rule] : report.verdict.rules()) {
    rules[name] = {{"holds", rule.holds}};
    if (!rule.exact) rules[name]["share_of_bound"] = rule.share;
  }
  return {{"case", report.name},
          {"op", report.op},
          {"path", report.path},
          {"implementation", report.verdict.implementation()},
          {"passed", report.verdict.passed()},
          {"failure", report.verdict.failure()},
          {"seconds", report.seconds},
          {"rules", std::move(rules)}};
}

void print_reports(const std::vector<Report>& reports) {
  Table table({"case", "op", "implementation", "closest rule", "result"});
  for (const Report& r : reports) {
    table.add({one_line(r.name), one_line(r.op), r.verdict.implementation(), one_line(closest(r.verdict)),
               r.verdict.passed() ? "ok" : "FAILED"});
  }
  table.print();
}

void print_rules(const std::vector<Report>& reports) {
  Table table({"op", "rule", "largest share of bound", "case"});
  std::map<std::pair<std::string, std::string>, std::pair<Rule, std::string>> worst;
  for (const Report& r : reports) {
    for (const auto& [name, rule] : r.verdict.rules()) {
      auto [entry, inserted] = worst.try_emplace({r.op, name}, rule, r.name);
      if (!inserted && rule.share > entry->second.first.share) entry->second = {rule, r.name};
    }
  }
  for (const auto& [key, value] : worst) {
    const Rule& rule = value.first;
    table.add({one_line(key.first), one_line(key.second), rule.exact ? "exact" : fmt::format("{:.3f}", rule.share),
               rule.exact ? "" : one_line(value.second)});
  }
  fmt::print("\n");
  table.print();
}

int run_check(const Options& options) {
  const megamla_exec exec = options.device.exec();
  std::vector<std::string> files;
  for (const std::string& path : options.paths) {
    const std::vector<std::string> found = check::find_cases(path);
    files.insert(files.end(), found.begin(), found.end());
  }
  std::vector<Report> reports;
  reports.reserve(files.size());
  for (const std::string& file : files) reports.push_back(check::check_file(file, exec));

  const auto passed = std::count_if(reports.begin(), reports.end(), [](const Report& r) { return r.verdict.passed(); });
  const auto failed = static_cast<std::ptrdiff_t>(reports.size()) - passed;
  if (options.json.path != "-") {
    print_reports(reports);
    if (options.rules) print_rules(reports);
    fmt::print("\n{} passed, {} failed (device {})\n", passed, failed, options.device.device);
    std::fflush(stdout);
  }
  for (const Report& r : reports) {
    if (!r.verdict.passed()) fmt::print(stderr, "FAILED {}: {}\n", one_line(r.name), one_line(r.verdict.failure()));
  }
  nlohmann::json record = {{"device", options.device.device}, {"passed", passed}, {"failed", failed}};
  record["cases"] = nlohmann::json::array();
  for (const Report& r : reports) record["cases"].push_back(as_json(r));
  options.json.write("check", std::move(record));
  return failed == 0 ? kOk : kFailed;
}

}  // namespace

Command check_command() {
  Command command;
  command.summary = "Run golden cases: inputs and expected results of every op, held against stated bounds";
  command.examples =
      "Examples:\n"
      "  megamla check tests/golden                         a folder, searched with its subfolders\n"
      "  megamla check --device reference --rules golden/   also the share of its bound that each rule used at most\n"
      "  megamla check a.safetensors b.safetensors --json - the report as JSON on stdout, no table\n"
      "\n"
      "Exit code: 0 if every case holds; 1 if one fails (an op that the program does not know is a failure);\n"
      "2 for wrong arguments or nothing to check. docs/golden.md says what a case is and how it is judged.";
  command.add = [](CLI::App& app) {
    auto options = std::make_shared<Options>();
    app.add_option("paths", options->paths, "golden files (*.safetensors) or folders of them")
        ->type_name("FILE|DIR")
        ->required();
    app.add_flag("--rules", options->rules, "also a table of the comparison rules of each op");
    options->device.add(app);
    options->json.add(app);
    return [options] { return run_check(*options); };
  };
  return command;
}

}  // namespace megamla::app
