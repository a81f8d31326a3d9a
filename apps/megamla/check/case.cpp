#include "check/case.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace megamla::check {

void Arena::Free::operator()(void* p) const { std::free(p); }

void* Arena::bytes(int64_t count, uint8_t fill) {
  constexpr size_t kAlignment = 256;
  const size_t size = (static_cast<size_t>(count) + kAlignment) / kAlignment * kAlignment;
  blocks_.emplace_back(std::aligned_alloc(kAlignment, size));
  if (blocks_.back() == nullptr) throw std::bad_alloc();
  std::memset(blocks_.back().get(), fill, size);
  return blocks_.back().get();
}

megamla_tensor Arena::tensor(megamla_dtype dtype, std::initializer_list<int64_t> shape, uint8_t fill) {
  int64_t size = megamla_dtype_size(dtype);
  for (const int64_t extent : shape) size *= extent;
  return host_tensor(bytes(size, fill), dtype, shape);
}

megamla_tensor Case::input(const std::string& name) {
  Result<megamla_tensor> view = file_.view(name);
  if (!view.ok()) throw CaseError(view.status().message());
  megamla_tensor t = view.value();
  const int64_t size = file_.find(name)->bytes;
  void* copy = arena_.bytes(size);
  if (size > 0) std::memcpy(copy, t.data, static_cast<size_t>(size));
  t.data = copy;
  return t;
}

const std::string& Case::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end())
    throw CaseError(fmt::format("{}: metadata '{}': expected a value, found nothing", file_.path(), key));
  return found->second;
}

int64_t Case::integer(const std::string& key) const {
  const std::string& value = text(key);
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size()) {
    throw CaseError(fmt::format("{}: metadata '{}': expected an integer, found '{}'", file_.path(), key, value));
  }
  return parsed;
}

double Case::number(const std::string& key) const {
  const std::string& value = text(key);
  char* end = nullptr;
  const double parsed = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0') {
    throw CaseError(fmt::format("{}: metadata '{}': expected a number, found '{}'", file_.path(), key, value));
  }
  return parsed;
}

void Verdict::share(const std::string& rule, double share, const std::string& where) {
  const double shown = std::isnan(share) ? INFINITY : share;
  auto [entry, inserted] = shares_.emplace(rule, shown);
  if (!inserted && shown > entry->second) entry->second = shown;
  if (shown > 1 && failure_.empty()) {
    failure_ = shown == 2 ? fmt::format("{}: {}", rule, where)
                          : fmt::format("{}: {} ({:.3g} of its bound)", rule, where, shown);
  }
}

void Verdict::equal(const std::string& rule, const void* got, const void* expected, int64_t bytes) {
  const auto* a = static_cast<const uint8_t*>(got);
  const auto* b = static_cast<const uint8_t*>(expected);
  if (bytes == 0 || std::memcmp(a, b, static_cast<size_t>(bytes)) == 0) return require(rule, true, "");
  int64_t first = 0;
  while (a[first] == b[first]) ++first;
  require(rule, false, fmt::format("byte {}: expected {:#04x}, found {:#04x}", first, b[first], a[first]));
}

void Verdict::error(const std::string& message) {
  if (failure_.empty()) failure_ = message;
}

void expect_ok(megamla_status status) {
  if (status != MEGAMLA_OK) throw CaseError(megamla_last_error());
}

}  // namespace megamla::check
