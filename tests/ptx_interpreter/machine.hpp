// What runs: decoded instructions, warps, blocks, clusters.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "memory.hpp"
#include "text.hpp"

namespace ptx {

constexpr int kLanes = 32;
using Mask = uint32_t;
constexpr Mask kAllLanes = ~Mask{0};

struct Warp;
struct Block;
struct Cluster;
struct Instruction;
class Races;
struct Counters;
using Run = void (*)(Warp&, const Instruction&);

// Where an operand's 32 lanes are: bytes from the warp's registers or the program's constants. 32 bits a lane, or 64
// where it is wide; a predicate is one Mask.
struct Slot {
  uint32_t offset = 0;
  bool constant = false;
  bool wide = false;
  bool sink = false;     // written nowhere
  bool negated = false;  // predicates
};

// Operands beyond the usual four, and what an instruction's name says.
struct Extra {
  std::vector<Slot> d, a, b, c;
  Type type = Type::kNone;
  Space space = Space::kGeneric;
  int64_t numbers[8] = {};
  std::string text;
};

struct Instruction {
  Run run = nullptr;
  Slot d, a, b, c;
  uint32_t guard = 0;  // offset of the predicate
  bool guarded = false, guard_negated = false;
  uint32_t target = 0;
  int64_t value = 0;  // offset of an address, or a small number of the instruction's own
  Extra* extra = nullptr;
};

struct Location {
  int line, source_file, source_line;
};

enum class SpecialKind : uint8_t {
  kLane,
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaX,
  kCtaY,
  kCtaZ,
  kNctaX,
  kNctaY,
  kNctaZ,
  kWarp,
  kNwarp,
  kClusterX,
  kClusterY,
  kClusterZ,
  kNclusterX,
  kNclusterY,
  kNclusterZ,
  kClusterCtaX,
  kClusterCtaY,
  kClusterCtaZ,
  kClusterNctaX,
  kClusterNctaY,
  kClusterNctaZ,
  kClusterRank,
  kClusterSize,
  kIsExplicitCluster,
  kLaneEq,
  kLaneLe,
  kLaneLt,
  kLaneGe,
  kLaneGt,
  kSm,
  kNsm,
  kWarpSize,
  kDynamicSharedBytes,
  kTotalSharedBytes,
  kGridId,
  kZero,
  kSharedAddress,
  kDynamicShared  // + value
};
struct Special {
  SpecialKind kind;
  uint32_t value;
  Slot slot;
};

// One kernel, ready to run.
struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<Location> locations;
  std::deque<Extra> extras;
  std::vector<Special> specials;
  std::vector<uint8_t> constants;  // aligned within: constant_base()
  std::shared_ptr<const Module> module;
  std::vector<Variable> params;
  std::vector<int64_t> param_offsets;
  int64_t param_bytes = 0;
  uint32_t register_bytes = 0;
  uint32_t static_shared = 0;
  uint32_t dynamic_begin = 0;  // static_shared, aligned for the dynamic part
  uint32_t local_bytes = 0;    // of a lane
  int max_threads = 1024;
  bool exact_threads = false;

  std::string source(uint32_t pc) const;  // file and line of the CUDA source, or of the PTX text
  std::string where(uint32_t pc) const;
};

enum class Wait : uint8_t { kReady, kJoin, kWarpBarrier, kBarrier, kClusterBarrier, kMbarrier, kYield };

// Lanes of a warp that are at the same place.
struct Group {
  uint32_t pc = 0;
  Mask lanes = 0;
  Wait wait = Wait::kReady;
  uint32_t number = 0;   // kJoin, kWarpBarrier: lanes; kBarrier: its index; kMbarrier: parity
  uint64_t address = 0;  // kMbarrier; kBarrier and kClusterBarrier: the phase that must end
};

struct Copy {  // of cp.async, one lane's
  uint8_t lane = 0;
  uint32_t commit = 0;  // group, once committed
  uint32_t to = 0;
  uint64_t from = 0;
  uint8_t bytes = 0, valid = 0;
};

struct WgmmaOp {
  const Instruction* instruction;
  uint64_t a, b;  // descriptors
  bool accumulate;
  uint32_t commit;  // group, once committed
};

struct Warp {
  // Read on every instruction.
  uint32_t pc = 0;
  uint32_t switch_pc = 0;  // another group waits there: reaching it means to look
  Mask active = 0;         // lanes of the group that runs
  Mask exec = 0;           // of them, those whose guard holds
  uint8_t* base[2] = {};   // registers, constants
  const Program* program = nullptr;
  Block* block = nullptr;
  Range cached;  // the last allocation that was accessed
  Races* races = nullptr;
  Counters* counters = nullptr;  // where they are counted: of each instruction
  bool must_wait = false;        // the launch may overlap the one before it, and the warp has not waited for that

  Mask alive = 0;
  Mask carry = 0;
  int index = 0;             // in the block
  bool force_false = false;  // the next wait says no instead of waiting
  bool resumed = false;      // a barrier that gives a result was passed
  Mask cluster_arrived = 0;
  uint64_t cluster_phase = 0;
  std::vector<Group> others;
  std::unique_ptr<uint8_t[]> registers;
  std::vector<uint8_t> local;  // lane after lane
  std::vector<Copy> copies;
  uint32_t commits[kLanes] = {};
  std::vector<WgmmaOp> products;
  uint32_t product_commits = 0;

  bool choose();  // makes a group that can go on the running one
  bool finished() const { return alive == 0; }
  void park(Wait wait, uint32_t at, uint32_t number = 0, uint64_t address = 0);
  void look();  // the running group may have met another one, or passed it
  // True when all of `members` that are alive are here; else the group waits for the others at this instruction.
  bool together(Mask members);
  [[noreturn]] void fail(const std::string& what, int lane = -1) const;
};

struct NamedBarrier {
  uint32_t arrived = 0;
  uint64_t phase = 0;
  uint32_t expected = 0;  // 0: all threads of the block
  uint32_t yes = 0;       // predicates of bar.red
  uint32_t results[2] = {};
};

struct AsyncEvent {  // cp.async.mbarrier.arrive, cp.async.bulk: lands later
  Warp* warp;
  std::function<void()> land;
};

struct Block {
  Cluster* cluster = nullptr;
  uint32_t id[3] = {};
  uint32_t rank = 0;
  uint32_t threads = 0, alive_threads = 0;
  std::vector<uint8_t> shared;  // from kSharedBegin on
  std::vector<bool> mbarriers;  // by 8 bytes of `shared`
  NamedBarrier barriers[16];
  std::vector<std::unique_ptr<Warp>> warps;
  std::deque<AsyncEvent> events;

  void exit_threads(uint32_t count);
  void settle_barrier(uint32_t index);
};

struct Launch {
  std::shared_ptr<const Program> program;
  uint32_t grid[3] = {1, 1, 1};
  uint32_t block[3] = {1, 1, 1};
  uint32_t cluster[3] = {1, 1, 1};
  uint32_t dynamic_shared = 0;
  bool overlaps = false;  // programmatic stream serialization
  std::vector<uint8_t> params;
};

// Blocks that run together.
struct Cluster {
  Cluster(const Launch& launch_, uint64_t seed_, bool find_races_ = false);
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;
  void run(uint64_t index);  // of the cluster in the grid

  const Launch& launch;
  std::vector<std::unique_ptr<Block>> blocks;
  uint64_t barrier_phase = 0;
  uint32_t barrier_arrived = 0, alive_threads = 0;
  uint64_t seed;
  bool find_races;
  std::mt19937_64 random;
  bool random_schedule;
  bool late;  // asynchronous work lands as late as it may
  uint64_t progress = 0;
  std::unique_ptr<Races> races;  // where they are looked for
  uint64_t instructions = 0;

  void settle_barrier();
  Block& peer(uint32_t rank, const Warp& asking) const;

 private:
  void place(uint64_t index);
  void prepare(Block& block);
  void prepare(Warp& warp);
  template <bool kCount>
  uint64_t run_warp(Warp& warp, uint64_t limit);
  bool land_events();
  [[noreturn]] void report_deadlock();
};

// A kernel did what it must not.
struct Fault : std::runtime_error {
  enum class Kind { kAddress, kIllegal, kTimeout } kind;
  Fault(Kind k, const std::string& text) : std::runtime_error(text), kind(k) {}
};

// Runs a grid to its end; throws Fault.
void run_grid(const Launch& launch);

// From text to a program; throws Fault with what the text lacks.
std::shared_ptr<const Program> assemble(std::shared_ptr<const Module> module, const std::string& kernel,
                                        const std::function<void*(const std::string&)>& variable);

std::string demangled(const std::string& name);

}  // namespace ptx
