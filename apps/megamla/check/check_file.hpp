// One golden file in, one report out.
#pragma once

#include <string>
#include <vector>

#include "check/case.hpp"

namespace megamla::check {

struct Report {
  std::string path;
  std::string name;  // op__case
  std::string op;
  Verdict verdict;
  double seconds = 0;
};

// A file, or every *.safetensors below a folder in the order of their paths. Throws CaseError if there is nothing.
std::vector<std::string> find_cases(const std::string& path);

// Never throws: a file that cannot be read, an unknown op and a refused call are failures of the case.
Report check_file(const std::string& path, const megamla_exec& exec);

}  // namespace megamla::check
