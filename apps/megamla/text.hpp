// What the program prints: single lines and tables.
#pragma once

#include <cstdio>
#include <string>
#include <vector>

namespace megamla::app {

// Line breaks and other control characters replaced, so that text from a file cannot break a line of output.
std::string one_line(std::string text);

// Columns as wide as their widest cell; a column whose cells all begin with a digit is aligned to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  // As many cells as the header has.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }
  std::string text() const;
  void print(std::FILE* file = stdout) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace megamla::app
