#include "text.hpp"

#include <algorithm>

namespace megamla::app {

std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text;
}

std::string Table::text() const {
  const size_t columns = rows_.front().size();
  std::vector<size_t> width(columns, 0);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (size_t r = 0; r < rows_.size(); ++r) {
    for (size_t c = 0; c < columns; ++c) {
      const std::string& cell = rows_[r].at(c);
      width[c] = std::max(width[c], cell.size());
      if (r > 0 && (cell.empty() || cell[0] < '0' || cell[0] > '9')) right[c] = false;
    }
  }
  std::string text;
  for (const std::vector<std::string>& row : rows_) {
    std::string line;
    for (size_t c = 0; c < columns; ++c) {
      const std::string padding(width[c] - row[c].size(), ' ');
      line += (c == 0 ? "" : "  ") + (right[c] ? padding + row[c] : row[c] + padding);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

void Table::print(std::FILE* file) const {
  const std::string all = text();
  std::fwrite(all.data(), 1, all.size(), file);
}

}  // namespace megamla::app
