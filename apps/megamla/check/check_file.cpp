#include "check/check_file.hpp"

#include <chrono>
#include <filesystem>

namespace megamla::check {

Report check_file(const std::string& path, const megamla_exec& exec) {
  Report report;
  report.path = path;
  report.name = std::filesystem::path(path).stem().string();
  const auto begin = std::chrono::steady_clock::now();
  try {
    Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path);
    if (!file.ok()) throw CaseError(file.status().message());
    Case golden(file.value());
    report.op = golden.text("op");
    const Runner runner = find_runner(report.op);
    if (runner == nullptr) throw CaseError(fmt::format("unknown op '{}'", report.op));
    Run run{golden, report.verdict, exec};
    runner(run);
  } catch (const std::exception& error) {
    report.verdict.error(error.what());
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace megamla::check
