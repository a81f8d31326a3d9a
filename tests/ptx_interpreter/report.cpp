// What a fault looks like.
#include <cxxabi.h>
#include <fmt/format.h>

#include <cstdlib>

#include "access.hpp"

namespace ptx {

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string result = status == 0 ? text : name;
  std::free(text);
  // The names of files in anonymous namespaces say nothing.
  for (size_t at = 0; (at = result.find("_GLOBAL__N__", at)) != std::string::npos;) {
    const size_t end = result.find("::", at);
    if (end == std::string::npos) break;
    result.erase(at, end + 2 - at);
  }
  return result;
}

std::string Program::source(uint32_t pc) const {
  const Location& at = locations[pc];
  const auto file = module->files().find(at.source_file);
  if (file == module->files().end()) return fmt::format("PTX line {}", at.line);
  return fmt::format("{}:{}", file->second, at.source_line);
}

std::string Program::where(uint32_t pc) const {
  const Location& at = locations[pc];
  const bool known = module->files().count(at.source_file) != 0;
  return fmt::format("{}\n    PTX line {}: {}", known ? "\n    " + source(pc) : "", at.line, module->line(at.line));
}

namespace {

std::string thread_of(const Warp& w, int lane) {
  const Block& b = *w.block;
  std::string text = fmt::format("block ({}, {}, {}), warp {}", b.id[0], b.id[1], b.id[2], w.index);
  if (lane >= 0) text += fmt::format(", lane {} (thread {})", lane, w.index * kLanes + lane);
  return text;
}

std::string report(const Warp& w, const std::string& what, int lane) {
  return fmt::format("{}\n    kernel {}\n    {}{}", what, demangled(w.program->name), thread_of(w, lane),
                     w.program->where(w.pc - 1));
}

std::string describe(const Warp& w, const char* space, uint64_t address) {
  const std::string_view name = space;
  if (name == "global") return Memory::device().describe(address);
  if (name.substr(0, 6) == "shared") {
    const uint64_t rank = address >> kRankShift & 0xff;
    return fmt::format("offset {} in block {} of the cluster, this is block {}; {} bytes of shared memory",
                       static_cast<int64_t>(address & kSharedOffsetMask) - kSharedBegin, rank, w.block->rank,
                       w.block->shared.size());
  }
  if (name == "local") return fmt::format("{} bytes of local memory", w.program->local_bytes);
  return fmt::format("{} bytes of parameters", w.program->param_bytes);
}

std::string wait_of(const Group& g) {
  switch (g.wait) {
    case Wait::kJoin:
      return fmt::format("for lanes {:#010x} of its warp", g.number);
    case Wait::kWarpBarrier:
      return fmt::format("at a warp barrier of lanes {:#010x}", g.number);
    case Wait::kBarrier:
      return fmt::format("at barrier {}", g.number & 15);
    case Wait::kClusterBarrier:
      return "at the barrier of the cluster";
    case Wait::kMbarrier:
      return fmt::format("for the mbarrier at offset {} of block {}, parity {}",
                         (g.address & kSharedOffsetMask) - kSharedBegin, g.address >> kRankShift, g.number);
    default:
      return "for its turn";
  }
}

}  // namespace

void Warp::fail(const std::string& what, int lane) const {
  throw Fault(Fault::Kind::kIllegal, report(*this, what, lane));
}

void fail_access(const Warp& w, const char* space, uint64_t address, uint64_t bytes, int lane) {
  const std::string what = fmt::format("{} bytes of {} memory at {:#x} that the kernel must not touch: {}", bytes,
                                       space, address, describe(w, space, address));
  throw Fault(Fault::Kind::kAddress, report(w, what, lane));
}

void fail_alignment(const Warp& w, const char* space, uint64_t address, uint64_t bytes, int lane) {
  const std::string what =
      fmt::format("{} bytes of {} at {:#x}, which is no multiple of {}", bytes, space, address, bytes);
  throw Fault(Fault::Kind::kAddress, report(w, what, lane));
}

void Cluster::report_deadlock() {
  constexpr int kMost = 24;
  std::string text = "no warp can go on:";
  int listed = 0;
  for (const auto& block : blocks) {
    for (const auto& warp : block->warps) {
      for (const Group& g : warp->others) {
        if (listed++ >= kMost) continue;
        const uint32_t at = g.wait == Wait::kBarrier || g.wait == Wait::kClusterBarrier ? g.pc - 1 : g.pc;
        text += fmt::format("\n  {}, lanes {:#010x} wait {}{}", thread_of(*warp, -1), g.lanes, wait_of(g),
                            warp->program->where(at));
      }
    }
  }
  if (listed > kMost) text += fmt::format("\n  and {} more", listed - kMost);
  throw Fault(Fault::Kind::kTimeout, fmt::format("{}\n    kernel {}", text, demangled(launch.program->name)));
}

}  // namespace ptx
