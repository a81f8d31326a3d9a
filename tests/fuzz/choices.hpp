// The fuzzer's bytes, read as decisions. Past the end every decision is 0, the plainest one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <span>

namespace megamla::fuzz {

class Choices {
 public:
  explicit Choices(std::span<const uint8_t> bytes) : left_(bytes) {}

  bool any_left() const { return !left_.empty(); }

  uint8_t byte() {
    if (left_.empty()) return 0;
    const uint8_t value = left_.front();
    left_ = left_.subspan(1);
    return value;
  }
  // Rarely true, and false past the end.
  bool rarely() { return byte() > 247; }
  bool coin() { return byte() % 2 == 1; }

  // Inclusive; the range fits in two bytes.
  int64_t in(int64_t low, int64_t high) {
    const auto width = static_cast<uint64_t>(high - low + 1);
    uint64_t value = byte();
    if (width > 256) value = value << 8 | byte();
    return low + static_cast<int64_t>(value % width);
  }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[byte() % values.size()];
  }

  // Any number at all, the awkward ones more often.
  int64_t number() {
    constexpr int64_t kAwkward[] = {
        0,         1,         -1,        2,         3,         7,         8,         16,           31,
        127,       128,       512,       4096,      INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN,    1LL << 31,
        1LL << 40, 1LL << 59, 1LL << 60, 1LL << 61, 1LL << 62, -16,       65536,     INT64_MAX / 8};
    const uint8_t kind = byte();
    if (kind < std::size(kAwkward)) return kAwkward[kind];
    if (kind < 128) return kind - 64;
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(bits); ++i) bits = bits << 8 | byte();
    return static_cast<int64_t>(bits);
  }

  // Contents are made from a seed: bytes of the input are for what the contents mean.
  std::minstd_rand generator() { return std::minstd_rand(static_cast<uint32_t>(in(1, 65535))); }

 private:
  std::span<const uint8_t> left_;
};

}  // namespace megamla::fuzz
