#include "check/check_file.hpp"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <new>

namespace megamla::check {
namespace {

void run_case(const std::string& path, const megamla_exec& exec, Report& report) {
  Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path);
  if (!file.ok()) throw CaseError(file.status().message());
  Case golden(file.value(), static_cast<megamla_device>(exec.device));
  report.op = golden.text("op");
  const Runner runner = find_runner(report.op);
  if (runner == nullptr) golden.refuse("metadata 'op'", "an op that this program knows", "'" + report.op + "'");
  Run run{golden, report.verdict, exec};
  runner(run);
}

}  // namespace

std::vector<std::string> find_cases(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  if (fs::is_regular_file(path, error)) return {path};
  if (!fs::is_directory(path, error)) {
    throw CaseError(fmt::format("{}: expected a golden file or a folder of them, found {}", path,
                                fs::exists(path, error) ? "something else" : "nothing"));
  }
  std::vector<std::string> found;
  const auto options = fs::directory_options::follow_directory_symlink | fs::directory_options::skip_permission_denied;
  for (fs::recursive_directory_iterator it(path, options, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors" && !it->is_directory(error)) found.push_back(it->path().string());
  }
  if (error) throw CaseError(fmt::format("{}: expected a folder that can be read, found: {}", path, error.message()));
  if (found.empty()) throw CaseError(fmt::format("{}: expected *.safetensors files, found none", path));
  std::sort(found.begin(), found.end());
  return found;
}

Report check_file(const std::string& path, const megamla_exec& exec) {
  Report report;
  report.path = path;
  report.name = std::filesystem::path(path).stem().string();
  const auto begin = std::chrono::steady_clock::now();
  try {
    run_case(path, exec, report);
  } catch (const std::bad_alloc&) {
    report.verdict.error(path + ": expected sizes that fit in memory, found larger ones");
  } catch (const std::exception& error) {
    report.verdict.error(error.what());
  }
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report;
}

}  // namespace megamla::check
