// ld, st, atom, red and hints.
#include <mutex>

#include "access.hpp"
#include "binder.hpp"
#include "numbers.hpp"
#include "profile.hpp"

namespace ptx {
namespace {

// Which lanes touch what, where that is counted.
template <Space kSpace>
void count(Warp& w, const Instruction& in, uint64_t bytes) {
  Counters& counters = w.counters[w.pc - 1];
  uint64_t global[kLanes];
  uint64_t shared[kLanes];
  Mask is_global = 0;
  Mask is_shared = 0;
  each_lane(w.exec, [&](int i) {
    global[i] = lane_address(w, in, i);
    shared[i] = global[i] & kSharedOffsetMask;
    const auto window = static_cast<Window>(global[i] >> kWindowShift);
    const bool generic = kSpace == Space::kGeneric;
    const Mask lane = Mask{1} << i;
    if (kSpace == Space::kGlobal || (generic && window == Window::kGlobal)) is_global |= lane;
    if (kSpace == Space::kShared || (generic && window == Window::kShared)) is_shared |= lane;
  });
  if (is_global != 0) count_global(counters, global, is_global, bytes);
  if (is_shared != 0) count_shared(counters, shared, is_shared, bytes);
}

template <class E, Space kSpace>
void load(Warp& w, const Instruction& in) {
  const std::vector<Slot>& to = in.extra->d;
  const uint64_t bytes = to.size() * sizeof(E);
  if (w.counters != nullptr) count<kSpace>(w, in, bytes);
  each_lane(w.exec, [&](int i) {
    const uint8_t* from = memory_at<kSpace, Access::kRead>(w, lane_address(w, in, i), bytes, i);
    for (size_t k = 0; k < to.size(); ++k) {
      // Signed types are extended to the register's width.
      write_lane(w, to[k], i, static_cast<uint64_t>(static_cast<int64_t>(load_as<E>(from + k * sizeof(E)))));
    }
  });
}

template <class E, Space kSpace>
void store(Warp& w, const Instruction& in) {
  const std::vector<Slot>& from = in.extra->b;
  const uint64_t bytes = from.size() * sizeof(E);
  if (w.counters != nullptr) count<kSpace>(w, in, bytes);
  each_lane(w.exec, [&](int i) {
    uint8_t* to = memory_at<kSpace, Access::kWrite>(w, lane_address(w, in, i), bytes, i);
    for (size_t k = 0; k < from.size(); ++k) {
      const auto v = static_cast<E>(read_lane(w, from[k], i));
      std::memcpy(to + k * sizeof(E), &v, sizeof(E));
    }
  });
}

template <Space kSpace>
Run load_run(Type type) {
  switch (type) {
    case Type::kS8:
      return &load<int8_t, kSpace>;
    case Type::kS16:
      return &load<int16_t, kSpace>;
    case Type::kS32:
      return &load<int32_t, kSpace>;
    default:
      break;
  }
  switch (bytes_of(type)) {
    case 1:
      return &load<uint8_t, kSpace>;
    case 2:
      return &load<uint16_t, kSpace>;
    case 4:
      return &load<uint32_t, kSpace>;
    case 8:
      return &load<uint64_t, kSpace>;
    default:
      return nullptr;
  }
}
template <Space kSpace>
Run store_run(Type type) {
  switch (bytes_of(type)) {
    case 1:
      return &store<uint8_t, kSpace>;
    case 2:
      return &store<uint16_t, kSpace>;
    case 4:
      return &store<uint32_t, kSpace>;
    case 8:
      return &store<uint64_t, kSpace>;
    default:
      return nullptr;
  }
}

Space space_of(const Binder& b) {
  if (b.has("global")) return Space::kGlobal;
  if (b.has("shared::cluster")) return Space::kSharedCluster;
  if (b.has("shared") || b.has("shared::cta")) return Space::kShared;
  if (b.has("local")) return Space::kLocal;
  if (b.has("const")) return Space::kConst;
  if (b.has("param") || b.has("param::entry") || b.has("param::func")) return Space::kParam;
  return Space::kGeneric;
}

template <bool kLoad>
Run access_run(Space space, Type type) {
#define PTX_ACCESS(SPACE) \
  case SPACE:             \
    return kLoad ? load_run<SPACE>(type) : store_run<SPACE>(type)
  switch (space) {
    PTX_ACCESS(Space::kGeneric);
    PTX_ACCESS(Space::kGlobal);
    PTX_ACCESS(Space::kShared);
    PTX_ACCESS(Space::kSharedCluster);
    PTX_ACCESS(Space::kLocal);
    PTX_ACCESS(Space::kParam);
    PTX_ACCESS(Space::kConst);
  }
#undef PTX_ACCESS
  return nullptr;
}

bool bind_load_store(Binder& b) {
  const bool load = b.op() != "st";
  const Operand& address = b.operand(load ? 1 : 0);
  const Operand& data = b.operand(load ? 0 : 1);
  b.address(address);
  Space space = space_of(b);
  // Parameters of functions are kept with a lane's local memory.
  if (space == Space::kParam) space = b.symbol_space(address);
  if (load) {
    if (data.kind == Operand::Kind::kVector) {
      for (const Operand& part : data.parts) b.extra().d.push_back(b.write(part));
    } else {
      b.extra().d = {b.write(data)};
    }
  } else {
    for (const Operand& part : data.kind == Operand::Kind::kVector ? data.parts : std::vector<Operand>{data}) {
      b.extra().b.push_back(b.any_width(part));
    }
  }
  b.in.run = load ? access_run<true>(space, b.type) : access_run<false>(space, b.type);
  return b.in.run != nullptr;
}

enum class Atom : int64_t { kAdd, kMin, kMax, kAnd, kOr, kXor, kExch, kCas, kInc, kDec };
constexpr std::string_view kAtoms[] = {"add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec"};

template <class T>
T combined(Atom op, T old, T b, T c) {
  if constexpr (!std::is_floating_point_v<T>) {
    if (op == Atom::kAnd) return old & b;
    if (op == Atom::kOr) return old | b;
    if (op == Atom::kXor) return old ^ b;
    if (op == Atom::kInc) return old >= b ? T{0} : static_cast<T>(old + 1);
    if (op == Atom::kDec) return old == 0 || old > b ? b : static_cast<T>(old - 1);
    if (op == Atom::kAdd) return static_cast<T>(static_cast<Bits<T>>(old) + static_cast<Bits<T>>(b));
  }
  if (op == Atom::kCas) return old == b ? c : old;
  if (op == Atom::kExch) return b;
  if (op == Atom::kMin) return old < b ? old : b;
  if (op == Atom::kMax) return old > b ? old : b;
  return old + b;
}

// Pairs: add alone.
template <class F>
uint32_t added_pair(uint32_t a, uint32_t b) {
  return F::narrow(F::widen(a & 0xffff) + F::widen(b & 0xffff)) | F::narrow(F::widen(a >> 16) + F::widen(b >> 16))
                                                                      << 16;
}

std::mutex& atomics() {  // clusters may run on several threads
  static std::mutex mutex;
  return mutex;
}

template <class T, Space kSpace>
void atomic(Warp& w, const Instruction& in) {
  const std::lock_guard lock(atomics());
  const auto op = static_cast<Atom>(in.extra->numbers[0]);
  each_lane(w.exec, [&](int i) {
    uint8_t* at = memory_at<kSpace, Access::kSync>(w, lane_address(w, in, i), sizeof(T), i);
    const T old = load_as<T>(at);
    const T b = value_of<T>(static_cast<Bits<T>>(read_lane(w, in.b, i)));
    const T c = op == Atom::kCas ? value_of<T>(static_cast<Bits<T>>(read_lane(w, in.c, i))) : T{};
    const T now = combined(op, old, b, c);
    std::memcpy(at, &now, sizeof(T));
    if (!in.d.sink) write_lane(w, in.d, i, bits_of<T>(old));
  });
}
template <class F, Space kSpace>
void atomic_pair(Warp& w, const Instruction& in) {
  const std::lock_guard lock(atomics());
  each_lane(w.exec, [&](int i) {
    uint8_t* at = memory_at<kSpace, Access::kSync>(w, lane_address(w, in, i), 4, i);
    const auto old = load_as<uint32_t>(at);
    const uint32_t now = added_pair<F>(old, static_cast<uint32_t>(read_lane(w, in.b, i)));
    std::memcpy(at, &now, 4);
    if (!in.d.sink) write_lane(w, in.d, i, old);
  });
}

template <Space kSpace>
Run atomic_run(Type type) {
  switch (type) {
    case Type::kU32:
    case Type::kB32:
      return &atomic<uint32_t, kSpace>;
    case Type::kS32:
      return &atomic<int32_t, kSpace>;
    case Type::kU64:
    case Type::kB64:
      return &atomic<uint64_t, kSpace>;
    case Type::kS64:
      return &atomic<int64_t, kSpace>;
    case Type::kF32:
      return &atomic<float, kSpace>;
    case Type::kF64:
      return &atomic<double, kSpace>;
    case Type::kBf16x2:
      return &atomic_pair<Bf16, kSpace>;
    case Type::kF16x2:
      return &atomic_pair<F16, kSpace>;
    default:
      return nullptr;
  }
}

bool bind_atomic(Binder& b) {
  const size_t first = b.op() == "atom" ? 1 : 0;
  const bool wide = bytes_of(b.type) == 8;
  int64_t op = -1;
  for (size_t i = 0; i < std::size(kAtoms); ++i) op = b.has(kAtoms[i]) ? static_cast<int64_t>(i) : op;
  if (op < 0 || b.operand(first + 1).kind == Operand::Kind::kVector) return false;
  b.extra().numbers[0] = op;
  b.address(b.operand(first));
  b.in.d.sink = true;
  if (first == 1 && b.operand(0).kind == Operand::Kind::kRegister) b.in.d = b.write(b.operand(0));
  b.in.b = b.read(b.operand(first + 1), wide);
  if (op == static_cast<int64_t>(Atom::kCas)) b.in.c = b.read(b.operand(first + 2), wide);
  switch (space_of(b)) {
    case Space::kGlobal:
      b.in.run = atomic_run<Space::kGlobal>(b.type);
      break;
    case Space::kShared:
      b.in.run = atomic_run<Space::kShared>(b.type);
      break;
    case Space::kSharedCluster:
      b.in.run = atomic_run<Space::kSharedCluster>(b.type);
      break;
    default:
      b.in.run = atomic_run<Space::kGeneric>(b.type);
  }
  return b.in.run != nullptr;
}

void nothing(Warp&, const Instruction&) {}
void proxy_fence(Warp& w, const Instruction&) {
  if (w.races != nullptr) w.races->proxy_fence(w);
}
template <class C>
void zero(Warp& w, const Instruction& in) {
  fill_row(w.exec, row<C>(w, in.d), [](int) { return C{0}; });
}

}  // namespace

bool bind_memory(Binder& b) {
  const auto op = b.op();
  if (op == "ld" || op == "ldu") return bind_load_store(b);
  if (op == "st" && !b.has("async") && !b.has("bulk")) return bind_load_store(b);
  if ((op == "atom" || op == "red") && !b.has("async")) return bind_atomic(b);
  // Order is that of execution here; hints change nothing.
  if (op == "membar" || op == "fence" || op == "prefetch" || op == "prefetchu" || op == "discard" ||
      op == "applypriority") {
    b.in.run = op == "fence" && b.has("proxy") ? &proxy_fence : &nothing;
    return true;
  }
  if (op == "createpolicy") {
    b.in.d = b.write(b.operand(0));
    b.in.run = &zero<uint64_t>;
    return true;
  }
  return false;
}

}  // namespace ptx
