#include "check/case.hpp"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/validate.hpp"

namespace megamla::check {
namespace {

std::string shape_text(megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  std::string text = megamla_dtype_name(dtype);
  text += " [";
  const char* separator = "";
  for (const int64_t extent : shape) {
    text += separator + (extent == Case::kAny ? std::string("n") : std::to_string(extent));
    separator = ", ";
  }
  return text + "]";
}

}  // namespace

int64_t count_of(const megamla_tensor& t) {
  int64_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= t.shape[d];
  return count;
}

int64_t bytes_of(const megamla_tensor& t) {
  return count_of(t) * megamla_dtype_size(static_cast<megamla_dtype>(t.dtype));
}

void Case::refuse(const std::string& what, const std::string& expected, const std::string& found) const {
  throw CaseError(fmt::format("{}: {}: expected {}, found {}", file_.path(), what, expected, found));
}

megamla_tensor Case::copy(const std::string& name, app::Arena& arena) {
  Result<megamla_tensor> view = file_.view(name);
  if (!view.ok()) throw CaseError(view.status().message());
  megamla_tensor t = view.value();
  const int64_t size = file_.find(name)->bytes;
  void* block = arena.bytes(size);
  if (size > 0) std::memcpy(block, t.data, static_cast<size_t>(size));
  t.data = block;
  t.cuda_device = arena.cuda_device();
  return t;
}

void Case::require_shape(const std::string& name, const megamla_tensor& t, megamla_dtype dtype,
                         std::initializer_list<int64_t> shape) const {
  bool same = t.dtype == dtype && t.ndim == static_cast<int>(shape.size());
  int d = 0;
  for (const int64_t extent : shape) {
    same = same && (extent == kAny || t.shape[d] == extent);
    ++d;
  }
  if (!same) refuse(name, shape_text(dtype, shape), describe(t));
}

megamla_tensor Case::input(const std::string& name) { return copy(name, arena_); }

megamla_tensor Case::input(const std::string& name, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  const megamla_tensor t = input(name);
  require_shape(name, t, dtype, shape);
  return t;
}

megamla_tensor Case::expected(const std::string& name, megamla_dtype dtype, std::initializer_list<int64_t> shape) {
  const megamla_tensor t = copy(name, expected_);
  require_shape(name, t, dtype, shape);
  return t;
}

const std::string& Case::text(const std::string& key) const {
  const auto found = file_.metadata().find(key);
  if (found == file_.metadata().end()) refuse("metadata '" + key + "'", "a value", "nothing");
  return found->second;
}

int64_t Case::integer(const std::string& key) const {
  const std::string& value = text(key);
  int64_t parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size()) {
    refuse("metadata '" + key + "'", "an integer", "'" + value + "'");
  }
  return parsed;
}

int64_t Case::integer(const std::string& key, int64_t low, int64_t high) const {
  const int64_t value = integer(key);
  if (value < low || value > high) {
    refuse("metadata '" + key + "'", fmt::format("{} .. {}", low, high), std::to_string(value));
  }
  return value;
}

double Case::number(const std::string& key) const {
  const std::string& value = text(key);
  char* end = nullptr;
  const double parsed = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0') refuse("metadata '" + key + "'", "a number", "'" + value + "'");
  return parsed;
}

megamla_tensor output_like(Run& run, const std::string& name, megamla_dtype dtype,
                           std::initializer_list<int64_t> shape) {
  megamla_tensor t = run.golden.expected(name, dtype, shape);
  t.data = run.arena().bytes(bytes_of(t), kUnwritten);
  t.cuda_device = run.arena().cuda_device();
  return t;
}

void compare_equal(Run& run, const std::string& name, const megamla_tensor& got) {
  const auto dtype = static_cast<megamla_dtype>(got.dtype);
  const auto& s = got.shape;
  Case& g = run.golden;
  const megamla_tensor expected = got.ndim == 1   ? g.expected(name, dtype, {s[0]})
                                  : got.ndim == 2 ? g.expected(name, dtype, {s[0], s[1]})
                                                  : g.expected(name, dtype, {s[0], s[1], s[2]});
  run.verdict.equal(name, got.data, expected.data, bytes_of(got));
}

void expect_ok(megamla_status status) {
  if (status != MEGAMLA_OK) throw CaseError(megamla_last_error());
}

}  // namespace megamla::check
