// NCCL's sums for ranks that are threads of one process, each on a device of its own. Programs that export these
// functions take them with MEGAMLA_NCCL set to nothing.
#include <atomic>
#include <barrier>
#include <bit>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime.hpp"

namespace {

constexpr int kFloat32 = 7;  // the other type is bf16

struct Id {
  char bytes[128];
};

// Ranks meet at the barrier; each has the addresses of all.
struct Group {
  explicit Group(int ranks) : size(ranks), meet(ranks), from(static_cast<size_t>(ranks)) {}
  int size;
  std::barrier<> meet;
  std::vector<const void*> from;
};

struct Rank {
  std::shared_ptr<Group> group;
  int rank;
};

float element(const void* data, size_t i, int type) {
  if (type == kFloat32) return static_cast<const float*>(data)[i];
  return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(data)[i]) << 16);
}

void store(void* data, size_t i, int type, float value) {
  if (type == kFloat32) {
    static_cast<float*>(data)[i] = value;
    return;
  }
  const auto bits = std::bit_cast<uint32_t>(value);
  static_cast<uint16_t*>(data)[i] = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// Elements begin .. begin+count-1 of the sum, to `to`.
cudaError_t sum(Rank& rank, const void* from, void* to, size_t begin, size_t count, int type) {
  Group& group = *rank.group;
  group.from[static_cast<size_t>(rank.rank)] = from;
  group.meet.arrive_and_wait();
  std::vector<float> total(count);
  for (const void* part : group.from) {
    for (size_t i = 0; i < count; ++i) total[i] += element(part, begin + i, type);
  }
  group.meet.arrive_and_wait();  // `to` may be `from`
  for (size_t i = 0; i < count; ++i) store(to, i, type, total[i]);
  group.meet.arrive_and_wait();
  return cudaSuccess;
}

}  // namespace

extern "C" {

int ncclGetUniqueId(Id* id) {
  static std::atomic<uint64_t> next{1};
  *id = {};
  const uint64_t number = next++;
  std::memcpy(id->bytes, &number, sizeof(number));
  return 0;
}

int ncclCommInitRank(void** communicator, int size, Id id, int rank) {
  static std::mutex mutex;
  static std::map<uint64_t, std::shared_ptr<Group>> groups;
  uint64_t number = 0;
  std::memcpy(&number, id.bytes, sizeof(number));
  std::shared_ptr<Group> group;
  {
    const std::lock_guard<std::mutex> lock(mutex);
    auto& found = groups[number];
    if (found == nullptr) found = std::make_shared<Group>(size);
    group = found;
  }
  if (group->size != size || rank < 0 || rank >= size) return 4;  // invalid argument
  group->meet.arrive_and_wait();
  *communicator = new Rank{group, rank};
  return 0;
}

int ncclCommDestroy(void* communicator) {
  delete static_cast<Rank*>(communicator);
  return 0;
}

int ncclAllReduce(const void* from, void* to, size_t count, int type, int, void* communicator, cudaStream_t stream) {
  auto* rank = static_cast<Rank*>(communicator);
  return ptx::runtime::submit(stream, [=] { return sum(*rank, from, to, 0, count, type); }) == cudaSuccess ? 0 : 1;
}

int ncclReduceScatter(const void* from, void* to, size_t count, int type, int, void* communicator,
                      cudaStream_t stream) {
  auto* rank = static_cast<Rank*>(communicator);
  const size_t begin = static_cast<size_t>(rank->rank) * count;
  return ptx::runtime::submit(stream, [=] { return sum(*rank, from, to, begin, count, type); }) == cudaSuccess ? 0 : 1;
}

const char* ncclGetErrorString(int result) { return result == 0 ? "no error" : "invalid argument"; }

}  // extern "C"
