// Slots -> raw records in shared memory. A lane looks after keys g and g + 8 of each of its warp's steps.
#pragma once

#include "cuda/decode_attention/few_heads/tiles.cuh"

namespace megamla::cuda::few_heads {

// A record's data and scales in a paged cache.
struct RecordPlace {
  const uint8_t* data;
  const uint8_t* scales;
};
__device__ __forceinline__ RecordPlace record_place(const DecodeKeys& keys, uint32_t slot) {
  const auto page =
      static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
  const uint32_t in_page = slot - page * keys.page_size;
  const uint8_t* begin = keys.cache + static_cast<int64_t>(page) * keys.page_stride;
  return {begin + static_cast<uint64_t>(in_page) * static_cast<uint32_t>(keys.data_step),
          begin + keys.scale_begin + static_cast<uint64_t>(in_page) * static_cast<uint32_t>(keys.scale_step)};
}

template <int kEights>
__device__ __forceinline__ void copy_record(format::Nvfp4_288, const Lane& me, uint32_t to, int key,
                                            const RecordPlace& from, bool valid) {
  using R = Raw<format::Nvfp4_288, kEights>;
  const uint8_t* data = from.data + me.half * (R::kLanePieces * 64) + me.c * 16;
  const uint32_t row = to + R::row(key);
#pragma unroll
  for (int j = 0; j < R::kLanePieces; ++j) ptx::copy_16_async(row ^ R::copied(me.c, j), data + j * 64, valid);
  if (me.c < R::kScalePitch / 16) {
    ptx::copy_16_async(to + R::kScales + key * R::kScalePitch + me.c * 16,
                       from.scales + me.half * R::kScalePitch + me.c * 16, valid);
  }
}
template <int kEights>
__device__ __forceinline__ void copy_record(format::Fp8_528, const Lane& me, uint32_t to, int key,
                                            const RecordPlace& from, bool valid) {
  using R = Raw<format::Fp8_528, kEights>;
  const uint8_t* data = from.data + me.half * R::kPitch + me.c * 16;
#pragma unroll
  for (int j = 0; j < R::kPitch / 64; ++j) {
    ptx::copy_16_async(to + R::place(key, j * 4 + me.c), data + j * 64, valid);
  }
  if (me.c == 0) ptx::copy_16_async(to + R::kScales + key * R::kScalePitch, from.scales, valid);
}
template <int kEights>
__device__ __forceinline__ void copy_record(format::Fp8_584, const Lane& me, uint32_t to, int key,
                                            const RecordPlace& from, bool valid) {
  using R = Raw<format::Fp8_584, kEights>;
  const uint8_t* data = from.data + me.half * 256 + me.c * 16;
  constexpr int kTurns = kEights == 1 ? 9 : 5;
#pragma unroll
  for (int j = 0; j < kTurns; ++j) {
    if (kEights == 1 || j < 4 || me.half == 1) {
      ptx::copy_16_async(to + R::place(key, j * 4 + me.c), data + j * 64, valid);
    }
  }
  if (me.c == 0) ptx::copy_8_async(to + R::kScales + key * R::kScalePitch, from.scales, valid);
}

// A crew's steps: every crew of the row takes the next 16 keys in turn, through both lists at their full widths, so
// that slots can be asked for before the lengths are known. Slots come from memory that no cache holds, as records do:
// with the records of a step come the slots of the step that has its stage next.
template <class First, class Second, int kEights>
struct Loader {
  using A = Arena<First, Second, kEights>;
  const DecodeParams& p;
  const Lane& me;
  uint32_t arena;
  int token;
  int window_steps;
  int steps;  // of the row
  int crews;
  int lengths[2];
  uint32_t valid;  // two bits a stage: whether keys g, g + 8 count

  struct Step {
    bool first;
    int begin;  // list position
  };
  __device__ __forceinline__ Step step_of(int s) const {
    return s < window_steps ? Step{true, s * kStepKeys} : Step{false, (s - window_steps) * kStepKeys};
  }
  __device__ __forceinline__ bool empty(const Step& step) const {
    return step.begin >= (step.first ? lengths[0] : lengths[1]);
  }

  __device__ __forceinline__ uint32_t slots_of(int stage) const { return arena + A::kSlots + stage * (kStepKeys * 4); }
  __device__ __forceinline__ void copy_slots(int s, int stage) const {
    if (me.lane >= kStepKeys) return;
    const Step step = step_of(s);
    const DecodeKeys& keys = p.keys[step.first ? 0 : 1];
    const int at = step.begin + me.lane;
    ptx::copy_4_async(slots_of(stage) + me.lane * 4,
                      keys.slots + token * keys.slots_row_stride + at * keys.slots_column_stride,
                      s < steps && at < keys.width);
  }

  template <class Record>
  __device__ __forceinline__ void copy(const DecodeKeys& keys, const Step& step, int length, uint32_t to, int stage,
                                       const uint32_t (&slots)[2]) {
    uint32_t bits = 0;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int key = me.g + 8 * r;
      const bool counts = step.begin + key < length && slots[r] < keys.num_slots;
      bits |= counts ? 1u << r : 0;
      copy_record<kEights>(Record{}, me, to, key, record_place(keys, counts ? slots[r] : 0), counts);
    }
    valid = (valid & ~(3u << (2 * stage))) | bits << (2 * stage);
  }
  __device__ __forceinline__ uint32_t first_stage(int stage) const { return arena + stage * A::kFirstBytes; }
  __device__ __forceinline__ uint32_t second_stage(int stage) const {
    return arena + A::kSecond + stage * A::kSecondBytes;
  }

  // Asks for the records of a step, if there is such a one, by the slots at its stage, and for the stage's next slots.
  // One group of copies, in any case.
  __device__ __forceinline__ void fill(int s, int stage) {
    const uint32_t slots[2] = {ptx::load_shared_1(slots_of(stage) + me.g * 4),
                               ptx::load_shared_1(slots_of(stage) + me.g * 4 + 32)};
    __syncwarp();
    copy_slots(s + A::kStages * crews, stage);
    const Step step = step_of(s);
    if (s < steps && !empty(step)) {
      if (A::kSame) {
        copy<First>(p.keys[step.first ? 0 : 1], step, step.first ? lengths[0] : lengths[1], first_stage(stage), stage,
                    slots);
      } else if (step.first) {
        copy<First>(p.keys[0], step, lengths[0], first_stage(stage), stage, slots);
      } else {
        copy<Second>(p.keys[1], step, lengths[1], second_stage(stage), stage, slots);
      }
    }
    ptx::commit_copies();
  }
};

}  // namespace megamla::cuda::few_heads
