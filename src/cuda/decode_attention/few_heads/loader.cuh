// Slots -> raw records in shared memory. A lane looks after keys g and g + 8 of each of its warp's steps.
#pragma once

#include "cuda/decode_attention/few_heads/tiles.cuh"

namespace megamla::cuda::few_heads {

// Where a record lies in a paged cache.
struct RecordPlace {
  const uint8_t* data;
  int32_t scales;  // from its data
  uint32_t valid;
};
__device__ __forceinline__ RecordPlace record_place(const DecodeKeys& keys, uint32_t slot, bool valid) {
  slot = valid ? slot : 0;
  const auto page =
      static_cast<uint32_t>((static_cast<uint64_t>(slot) * keys.division.multiplier) >> keys.division.shift);
  const uint32_t in_page = slot - page * keys.page_size;
  return {keys.cache + static_cast<int64_t>(page) * keys.page_stride +
              static_cast<uint64_t>(in_page) * static_cast<uint32_t>(keys.data_step),
          static_cast<int32_t>(static_cast<uint32_t>(keys.scale_begin) +
                               in_page * static_cast<uint32_t>(keys.scale_step - keys.data_step)),
          valid ? 1u : 0u};
}

// The warp's part of records g and g + 8. Where the lane's pieces j of 64 bytes go: `first` ^ a multiple of 64, beyond
// 128 bytes added.
template <int kBytes>
__device__ __forceinline__ void copy_scales(uint32_t to, const uint8_t* from, bool valid) {
  if constexpr (kBytes == 16) {
    ptx::copy_16_async(to, from, valid);
  } else if constexpr (kBytes == 8) {
    ptx::copy_8_async(to, from, valid);
  } else {
    ptx::copy_4_async(to, from, valid);
  }
}
// Where a lane's first piece of record g goes; further ones, 64 bytes apart in the record, at this ^ a constant.
template <class Record, int kEights>
__device__ __forceinline__ uint32_t first_piece(const Lane& me) {
  using R = Raw<Record, kEights>;
  if constexpr (Record::kFormat == MEGAMLA_KV_NVFP4_288) {
    return R::row(me.g) ^ R::copied(me.c);
  } else {
    return R::place(me.g, me.c);
  }
}
// The warp's part of records g and g + 8.
template <class Record, int kEights>
__device__ __forceinline__ void copy_records(const Lane& me, uint32_t to, uint32_t first,
                                             const RecordPlace (&from)[2]) {
  using R = Raw<Record, kEights>;
  constexpr bool kRope = Record::kFormat == MEGAMLA_KV_FP8_584;
  constexpr bool kE2m1 = Record::kFormat == MEGAMLA_KV_NVFP4_288;
  constexpr int kPieces = kWarpDims<kEights> / (kE2m1 ? 128 : 64);
  constexpr int kPartBytes = kPieces * 64;
  const bool last = kRope && me.part + 1 == kCrewWarps<kEights>;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const uint8_t* data = from[r].data + (me.part * kPartBytes + me.c * 16);
    const bool valid = from[r].valid != 0;
#pragma unroll
    for (int j = 0; j < kPieces + (kRope ? 1 : 0); ++j) {
      const uint32_t at = to + ((first ^ ((j & 1) << 6)) + (j >> 1) * 128);
      if (j < kPieces || last) ptx::copy_16_async(at + r * 8 * R::kPitch, data + j * 64, valid);
    }
    if (me.c == 0) {
      copy_scales<R::kScalePitch>(to + R::kScales + (me.g + 8 * r) * R::kScalePitch,
                                  from[r].data + (from[r].scales + (kRope ? 0 : me.part * R::kScalePitch)), valid);
    }
  }
}

// A crew's steps: the row's steps of 16 keys, first those of the window, are cut into as many runs of the same cost as
// there are crews; so few crews have steps of both lists. They are cut by the lists' full widths first, so that slots
// can be asked for before the lengths are known. Slots come from memory that no cache holds, as records do: with the
// records of a step come the slots of the step that has its stage next.
template <class First, class Second, int kEights>
struct Loader {
  using A = Arena<First, Second, kEights>;
  const DecodeParams& p;
  const Lane& me;
  uint32_t arena;
  int token;
  int (&lengths)[2];  // of the warp, in shared memory
  int window_steps;
  int begin;  // of the crew's steps
  int end;
  uint32_t valid;   // two bits a stage: whether keys g, g + 8 count
  uint32_t pieces;  // first_piece of both kinds of records, 16 bits each

  __device__ __forceinline__ static int steps_of(int keys) { return (keys + kStepKeys - 1) / kStepKeys; }
  __device__ __forceinline__ void deal_widths(int crew) {
    window_steps = steps_of(p.keys[0].width);
    deal(crew, p.crew_cost, p.dearer_crews);
  }
  // Whether the steps are others now.
  __device__ __forceinline__ bool deal_lengths(int crew, int crews, int first_length, int second_length) {
    if (me.lane == 0) lengths[0] = first_length, lengths[1] = second_length;
    const int window = steps_of(first_length);
    const int compressed = steps_of(second_length);
    if (window == window_steps && compressed == steps_of(p.keys[1].width)) return false;
    window_steps = window;
    const auto cost = static_cast<uint32_t>(kStepCost<First, Second> * window + kStepCost<Second, Second> * compressed);
    deal(crew, static_cast<int>(cost / crews), static_cast<int>(cost % crews));
    return true;
  }
  __device__ __forceinline__ void deal(int crew, int crew_cost, int dearer_crews) {
    begin = step_at(crew * crew_cost + min(crew, dearer_crews));
    end = step_at((crew + 1) * crew_cost + min(crew + 1, dearer_crews));
  }
  // The first step with so much before it.
  __device__ __forceinline__ int step_at(int cost) const {
    constexpr int kFirst = kStepCost<First, Second>;
    constexpr int kSecond = kStepCost<Second, Second>;
    const int beyond = cost - kFirst * window_steps;
    return beyond < 0 ? (cost + kFirst - 1) / kFirst : window_steps + (beyond + kSecond - 1) / kSecond;
  }

  struct Step {
    bool first;
    int begin;  // list position
  };
  __device__ __forceinline__ Step step_of(int s) const {
    return s < window_steps ? Step{true, s * kStepKeys} : Step{false, (s - window_steps) * kStepKeys};
  }

  __device__ __forceinline__ uint32_t slots_of(int stage) const { return arena + A::kSlots + stage * (kStepKeys * 4); }
  __device__ __forceinline__ void copy_slots(int s, int stage) const {
    if (s >= end) return;
    const Step step = step_of(s);
    const int at = step.begin + me.lane;
    if (step.first) {
      copy_slots_of(p.keys[0], at, stage);
    } else {
      copy_slots_of(p.keys[1], at, stage);
    }
  }
  __device__ __forceinline__ void copy_slots_of(const DecodeKeys& keys, int at, int stage) const {
    if (me.lane >= kStepKeys) return;
    ptx::copy_4_async(slots_of(stage) + me.lane * 4,
                      keys.slots + token * keys.slots_row_stride + at * keys.slots_column_stride, at < keys.width);
  }

  // Half of the lanes work out a key's place each, and leave them where the records will be.
  __device__ __forceinline__ static void leave_place(const DecodeKeys& keys, uint32_t slot, int key, bool inside,
                                                     uint32_t to) {
    const RecordPlace place = record_place(keys, slot, inside && slot < keys.num_slots);
    const auto data = reinterpret_cast<uint64_t>(place.data);
    ptx::store_shared(to + key * 16, uint4{static_cast<uint32_t>(data), static_cast<uint32_t>(data >> 32),
                                           static_cast<uint32_t>(place.scales), place.valid});
  }
  template <class Record, bool kFirst>
  __device__ __forceinline__ void copy(uint32_t to, int stage) {
    RecordPlace from[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const uint4 v = ptx::load_shared(to + (me.g + 8 * r) * 16);
      from[r] = {reinterpret_cast<const uint8_t*>(static_cast<uint64_t>(v.y) << 32 | v.x), static_cast<int32_t>(v.z),
                 v.w};
    }
    __syncwarp();
    copy_records<Record, kEights>(me, to, kFirst ? pieces & 0xffff : pieces >> 16, from);
    valid = (valid & ~(3u << (2 * stage))) | (from[0].valid | from[1].valid << 1) << (2 * stage);
  }
  __device__ __forceinline__ uint32_t first_stage(int stage) const { return arena + stage * A::kFirstBytes; }
  __device__ __forceinline__ uint32_t second_stage(int stage) const {
    return arena + A::kSecond + stage * A::kSecondBytes;
  }

  // Asks for the records of a step, if there is such a one, by the slots at its stage, and for the stage's next slots.
  // One group of copies, in any case.
  __device__ __forceinline__ void fill(int s, int stage) {
    const Step step = step_of(s);
    const bool some = s < end;
    const uint32_t to = A::kSame || step.first ? first_stage(stage) : second_stage(stage);
    if (some && me.lane < kStepKeys) {
      const uint32_t slot = ptx::load_shared_1(slots_of(stage) + me.lane * 4);
      const int at = step.begin + me.lane;
      if (step.first) {
        leave_place(p.keys[0], slot, me.lane, at < lengths[0], to);
      } else {
        leave_place(p.keys[1], slot, me.lane, at < lengths[1], to);
      }
    }
    __syncwarp();
    copy_slots(s + A::kStages, stage);
    if (some) {
      if (A::kSame || step.first) {
        copy<First, true>(to, stage);
      } else {
        copy<Second, false>(to, stage);
      }
    }
    ptx::commit_copies();
  }
};

}  // namespace megamla::cuda::few_heads
