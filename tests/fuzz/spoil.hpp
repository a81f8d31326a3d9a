// One thing wrong with a parameter struct.
#pragma once

#include <cstring>
#include <vector>

#include "fuzz/choices.hpp"
#include "megamla/types.h"

namespace megamla::fuzz {

// Any 32 or 64 bits of a struct.
template <class Struct>
void spoil_word(Choices& c, Struct& target) {
  const auto words = static_cast<int64_t>(sizeof(Struct) / sizeof(int32_t));
  const int64_t at = c.in(0, words - 1);
  const int64_t value = c.number();
  const auto size = at + 1 < words && c.coin() ? sizeof(int64_t) : sizeof(int32_t);
  std::memcpy(reinterpret_cast<char*>(&target) + at * 4, &value, size);
}

// One of `tensors`, or any word of `params`.
template <class Params>
void spoil(Choices& c, Params& params, const std::vector<megamla_tensor*>& tensors) {
  const auto any_tensor = [&] { return tensors[static_cast<size_t>(c.byte()) % tensors.size()]; };
  megamla_tensor* t = any_tensor();
  const auto d = static_cast<size_t>(c.byte()) % MEGAMLA_MAX_DIMS;
  switch (c.byte() % 10) {
    case 0:
      // Perhaps spoilt before: any number may wrap.
      t->shape[d] = static_cast<int64_t>(static_cast<uint64_t>(t->shape[d]) + static_cast<uint64_t>(c.in(-2, 2)));
      break;
    case 1:
      t->shape[d] = c.number();
      break;
    case 2:
      t->stride[d] = c.number();
      break;
    case 3:
      t->dtype = static_cast<int32_t>(c.in(-1, 9));
      break;
    case 4:
      t->data = any_tensor()->data;  // perhaps an output over an input
      break;
    case 5:
      t->data = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(t->data) + static_cast<uintptr_t>(c.in(-16, 16)));
      break;
    case 6:
      *t = {};
      break;
    case 7:
      *t = *any_tensor();
      break;
    default:
      spoil_word(c, params);
  }
}

}  // namespace megamla::fuzz
