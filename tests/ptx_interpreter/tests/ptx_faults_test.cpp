// Each kind of fault that the interpreter says it finds, planted.
#include <gtest/gtest.h>

#include <numeric>

#include "ptx_interpreter/tests/ptx_kernel.hpp"

namespace ptx::test {
namespace {

testing::AssertionResult says(const std::string& report, std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (report.find(part) == std::string::npos) {
      return testing::AssertionFailure() << "expected '" << part << "' in: " << report;
    }
  }
  return testing::AssertionSuccess();
}

// %d1: the address of element tid of %d0.
constexpr const char* kElement = "mul.wide.u32 %d9, %r0, 4;\nadd.s64 %d10, %d0, %d9;\n";

TEST(PtxFaults, AByteBehindAnAllocation) {
  const Device<uint32_t> out(64);
  EXPECT_EQ(run_body(std::string(kElement) + "st.global.u32 [%d10], %r0;", {1, 64}, {out}), "");
  const std::string report = run_body(std::string(kElement) + "st.global.u32 [%d10+4], %r0;", {1, 64}, {out});
  EXPECT_TRUE(says(report, {"4 bytes of global memory", "0 bytes after the nearest allocation, of 256 bytes", "warp 1",
                            "lane 31 (thread 63)", "st.global.u32 [%d10+4], %r0;"}));
}

TEST(PtxFaults, Misaligned) {
  const Device<uint32_t> out(64);
  EXPECT_TRUE(says(run_body("ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0+8];", {}, {out}), {"no multiple of 16"}));
}

TEST(PtxFaults, MemoryThatWasFreed) {
  uint64_t address = 0;
  {
    const Device<uint32_t> out(64);
    address = out;
  }
  EXPECT_TRUE(says(run_body("ld.global.u32 %r1, [%d0];", {}, {address}), {"must not touch"}));
}

TEST(PtxFaults, OverlapWithTheLaunchBefore) {
  const Device<uint32_t> out(64);
  const Shape overlapping{1, 64, 1, 0, true};
  const std::string store = std::string(kElement) + "st.global.u32 [%d10], %r0;\n";
  const std::string wait = "griddepcontrol.wait;\n";
  EXPECT_EQ(run_body("griddepcontrol.launch_dependents;\n" + wait + store, overlapping, {out}), "");
  EXPECT_EQ(run_body(store, {1, 64}, {out}), "");
  EXPECT_TRUE(says(run_body(store + wait, overlapping, {out}), {"before griddepcontrol.wait", "st.global"}));
  EXPECT_TRUE(says(run_body("", overlapping, {out}), {"ends without griddepcontrol.wait"}));
  EXPECT_EQ(run_body("cp.async.bulk.prefetch.L2.global [%d0], 64;\n" + wait, overlapping, {out}), "");
}

TEST(PtxFaults, SharedMemoryEnds) {
  EXPECT_EQ(run_body("mov.u32 %r1, shared;\nst.shared.u32 [%r1+60], %r0;", {1, 32, 1, 64}, {}), "");
  const std::string report = run_body("mov.u32 %r1, shared;\nst.shared.u32 [%r1+64], %r0;", {1, 32, 1, 64}, {});
  EXPECT_TRUE(says(report, {"offset 64", "64 bytes of shared memory"}));
}

TEST(PtxFaults, SharedMemoryOfABlockThatHasEnded) {
  // Block 1 reads from block 0, after it in time; only with a barrier at the end is block 0 still there.
  const std::string body = R"(
    mov.u32 %r1, %cluster_ctarank;
    mov.u32 %r2, shared;
    mov.u32 %r3, 0;
    st.shared.u32 [%r2], %r1;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    setp.eq.u32 %p0, %r1, 0;
    @%p0 bra END;
    mapa.shared::cluster.u32 %r4, %r2, %r3;
    mov.u32 %r9, 0;
  WAIT:
    add.u32 %r9, %r9, 1;
    setp.lt.u32 %p1, %r9, 20000;
    @%p1 bra WAIT;
    ld.shared::cluster.u32 %r5, [%r4];
  END:
  )";
  const std::string barrier = "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;\n";
  EXPECT_EQ(run_body(body + barrier, {2, 32, 2, 64}, {}), "");
  EXPECT_TRUE(says(run_body(body, {2, 32, 2, 64}, {}), {"block 0 of the cluster, which has ended"}));
}

TEST(PtxFaults, SharedWindowOfAnotherBlock) {
  const std::string body = R"(
    mov.u32 %r1, shared;
    mapa.shared::cluster.u32 %r2, %r1, 1;
    ld.shared::cta.u32 %r3, [%r2];
  )";
  EXPECT_TRUE(says(run_body(body, {2, 32, 2, 64}, {}), {"in block 1 of the cluster, this is block 0"}));
}

// cp.async of 4 bytes a lane, `wait`, then what the lane finds in shared memory.
std::vector<uint32_t> copied(const std::string& wait, uint64_t seed) {
  std::vector<uint32_t> values(32);
  std::iota(values.begin(), values.end(), 100U);
  const Device<uint32_t> from(values);
  const Device<uint32_t> to(32);
  const std::string body = R"(
    mul.wide.u32 %d2, %r0, 4;
    add.s64 %d3, %d0, %d2;
    add.s64 %d4, %d1, %d2;
    mov.u32 %r1, shared;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    cp.async.ca.shared.global [%r3], [%d3], 4;
    cp.async.commit_group;
  )";
  EXPECT_EQ(run_body(body + wait + "\nld.shared.u32 %r5, [%r3];\nst.global.u32 [%d4], %r5;", {1, 32, 1, 128},
                     {from, to}, seed),
            "");
  return to.values();
}

TEST(PtxFaults, CopiesLandWhenTheyAreWaitedFor) {
  std::vector<uint32_t> there(32);
  std::iota(there.begin(), there.end(), 100U);
  EXPECT_EQ(copied("cp.async.wait_group 0;", 0), there);
  EXPECT_EQ(copied("cp.async.wait_all;", 2), there);
  EXPECT_NE(copied("", 0), there);
  EXPECT_NE(copied("cp.async.wait_group 1;", 2), there);
  EXPECT_EQ(copied("", 1), there) << "an odd seed lets them land at once";
}

// Each of two blocks stores 100 * rank + lane to the other one by st.async, `wait`s, and tells what it finds.
std::string store_across(const std::string& wait, uint32_t bytes, const Device<uint32_t>& to) {
  const std::string before = R"(
    mov.u32 %r1, shared;
    mov.u32 %r2, %cluster_ctarank;
    xor.b32 %r3, %r2, 1;
    shl.b32 %r4, %r0, 2;
    add.u32 %r5, %r1, %r4;
    setp.eq.u32 %p0, %r0, 0;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+128], 1;
    @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+128], BYTES;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
    mapa.shared::cluster.u32 %r6, %r5, %r3;
    mapa.shared::cluster.u32 %r7, %r1, %r3;
    mad.lo.u32 %r8, %r2, 100, %r0;
    st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r6], %r8, [%r7+128];
  )";
  const std::string after = R"(
    ld.shared.u32 %r9, [%r5];
    mad.lo.u32 %r10, %r2, 128, %r4;
    cvt.u64.u32 %d1, %r10;
    add.s64 %d2, %d0, %d1;
    st.global.u32 [%d2], %r9;
    barrier.cluster.arrive.aligned;
    barrier.cluster.wait.aligned;
  )";
  std::string body = before + wait + after;
  body.replace(body.find("BYTES"), 5, std::to_string(bytes));
  return run_body(body, {2, 32, 2, 256}, {to});
}

TEST(PtxFaults, StoresAcrossACluster) {
  const std::string wait = "AGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+128], 0;\n@!%p1 bra AGAIN;\n";
  std::vector<uint32_t> crossed(64);
  std::iota(crossed.begin(), crossed.begin() + 32, 100U);
  std::iota(crossed.begin() + 32, crossed.end(), 0U);
  const Device<uint32_t> to(64);
  EXPECT_EQ(store_across(wait, 128, to), "");
  EXPECT_EQ(to.values(), crossed);
  const Device<uint32_t> early(64);
  EXPECT_TRUE(says(store_across("", 128, early), {"block 0 of the cluster, which has ended"}));
  EXPECT_NE(early.values(), crossed);
  EXPECT_TRUE(says(store_across(wait, 132, to), {"no warp can go on", "for the mbarrier at offset 128"}));
}

// An mbarrier that `arrivals` complete, of which each of 32 lanes makes one after its copy.
std::string wait_for_copies(int arrivals, const std::string& init) {
  const Device<uint32_t> from(32);
  const std::string body = init + R"(
    mul.wide.u32 %d2, %r0, 4;
    add.s64 %d3, %d0, %d2;
    mov.u32 %r1, shared;
    shl.b32 %r2, %r0, 2;
    add.u32 %r3, %r1, %r2;
    cp.async.ca.shared.global [%r3+64], [%d3], 4;
    cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%r1];
  WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], 0;
    @!%p1 bra WAIT;
  )";
  return run_body(fmt::format(fmt::runtime("mov.u32 %r1, shared;\nmov.u32 %r7, {};\n"), arrivals) + body,
                  {1, 32, 1, 256}, {from});
}

TEST(PtxFaults, Mbarriers) {
  const std::string init = "setp.eq.u32 %p0, %r0, 0;\n@%p0 mbarrier.init.shared::cta.b64 [%r1], %r7;\nbar.sync 0;\n";
  EXPECT_EQ(wait_for_copies(32, init), "");
  EXPECT_TRUE(says(wait_for_copies(33, init), {"no warp can go on", "for the mbarrier at offset 0 of block 0, parity 0",
                                               "mbarrier.try_wait.parity"}));
  EXPECT_TRUE(says(wait_for_copies(31, init + "mbarrier.arrive.shared::cta.b64 _, [%r1], 40;\n"), {"more arrivals"}));
  EXPECT_TRUE(says(wait_for_copies(32, ""), {"was not initialised"}));
}

// Warp 0 writes a word of shared memory, `between`, warp 1 reads it or writes it.
std::string race(const std::string& between, const std::string& second) {
  const std::string body = R"(
    mov.u32 %r1, shared;
    setp.eq.u32 %p0, %r0, 0;
    setp.eq.u32 %p1, %r0, 32;
    setp.ge.u32 %p2, %r0, 32;
    @%p0 mbarrier.init.shared::cta.b64 [%r1+64], 32;
    bar.sync 0;
    @%p0 st.shared.u32 [%r1], %r0;
  )";
  return run_body(body + between + "\n@%p1 " + second, {1, 64, 1, 128}, {}, 0, true);
}

TEST(PtxFaults, RacesInWhateverOrderTheWarpsRan) {
  const std::string by_mbarrier = R"(
    @!%p2 mbarrier.arrive.shared::cta.b64 _, [%r1+64];
    @!%p2 bra END;
  WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r1+64], 0;
    @!%p3 bra WAIT;
  END:
  )";
  for (const char* second : {"ld.shared.u32 %r2, [%r1];", "st.shared.u8 [%r1+3], %r0;"}) {
    EXPECT_TRUE(says(race("", second), {"that nothing orders after the", second}));
    EXPECT_TRUE(says(race("bar.arrive 1, 64;", second), {"that nothing orders"}));
    EXPECT_EQ(race("bar.sync 1, 64;", second), "");
    EXPECT_EQ(race(by_mbarrier, second), "");
  }
  EXPECT_EQ(race("", "st.shared.u8 [%r1+4], %r0;"), "") << "another byte";
}

TEST(PtxFaults, ADeadlockSaysWhereEveryWarpWaits) {
  const std::string report =
      run_body("setp.lt.u32 %p0, %r0, 32;\n@%p0 bar.sync 1, 96;\n@!%p0 bar.sync 2, 64;", {1, 64}, {});
  EXPECT_TRUE(
      says(report, {"no warp can go on", "warp 0", "at barrier 1", "bar.sync 1, 96", "warp 1", "at barrier 2"}));
}

TEST(PtxFaults, LanesThatNeverMeet) {
  const std::string body = R"(
    setp.lt.u32 %p0, %r0, 7;
    @%p0 bra APART;
    shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xffffffff;
    bra END;
  APART:
    bar.sync 3, 64;
  END:
  )";
  EXPECT_TRUE(says(run_body(body, {}, {}), {"no warp can go on", "wait for lanes 0xffffffff", "shfl.sync.idx"}));
  EXPECT_TRUE(says(run_body("shfl.sync.idx.b32 %r1, %r0, 0, 31, 0xfffffff0;", {}, {}), {"not in its member mask"}));
}

TEST(PtxFaults, AnOpcodeThatIsMissingIsNamedWhenItIsExecuted) {
  const std::string body = "setp.lt.u32 %p0, %r0, 99;\n@%p0 bra END;\nfrobnicate.b32 %r1, %r2;\nEND:";
  EXPECT_EQ(run_body(body, {}, {}), "");
  EXPECT_TRUE(says(run_body("frobnicate.b32 %r1, %r2;", {}, {}), {"not supported", "frobnicate.b32"}));
}

}  // namespace
}  // namespace ptx::test
