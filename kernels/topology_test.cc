#include "kernels/api/topology.h"

#include "kernels/api/thread_pool.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

namespace tandem::kernels {
namespace {

namespace fs = std::filesystem;

/// A tree as the system has it below /sys/devices/system.
class Tree {
 public:
  Tree() {
    std::string name = (fs::temp_directory_path() / "topology-XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    root_ = name;
  }

  ~Tree() { fs::remove_all(root_); }

  Tree(const Tree&) = delete;
  Tree& operator=(const Tree&) = delete;

  void cpu(int id, int node, const std::string& siblings) const {
    const fs::path folder = root_ / "cpu" / ("cpu" + std::to_string(id));
    fs::create_directories(folder / "topology");
    fs::create_directories(folder / ("node" + std::to_string(node)));
    std::ofstream(folder / "topology" / "thread_siblings_list") << siblings << "\n";
  }

  [[nodiscard]] const fs::path& root() const { return root_; }

 private:
  fs::path root_;
};

/// Two nodes of two cores, each with two hardware threads: 0 and 4, 1 and 5, ... Odd cores are on
/// node 1.
void fill_two_nodes(const Tree& tree) {
  for (int cpu = 0; cpu < 8; ++cpu) {
    const int core = cpu % 4;
    tree.cpu(cpu, core % 2, std::to_string(core) + "," + std::to_string(core + 4));
  }
}

using Places = std::vector<CpuList>;

TEST(ThreadPlaces, OnlyWhereAllProcessorsAreUsed) {
  const Tree tree;
  fill_two_nodes(tree);

  struct Row {
    const char* name;
    std::size_t threads;
    CpuList allowed;
    Places want;
  };

  const Row rows[] = {
      {"the whole machine", 8, {0, 1, 2, 3, 4, 5, 6, 7}, {{0}, {2}, {1}, {3}, {4}, {6}, {5}, {7}}},
      {"its cores", 4, {0, 1, 2, 3, 4, 5, 6, 7}, {{0, 4}, {2, 6}, {1, 5}, {3, 7}}},
      {"fewer than cores", 2, {0, 1, 2, 3, 4, 5, 6, 7}, {}},
      {"a thread for each hardware thread", 4, {0, 1, 4, 5}, {{0}, {1}, {4}, {5}}},
      {"first hardware threads of all cores first", 4, {0, 2, 4, 6}, {{0}, {2}, {4}, {6}}},
      {"one thread for each core", 2, {0, 1, 4, 5}, {{0, 4}, {1, 5}}},
      {"fewer threads", 3, {0, 1, 4, 5}, {}},
      {"more threads", 5, {0, 1, 4, 5}, {}},
      {"node 0 before node 1", 4, {0, 1, 2, 3}, {{0}, {2}, {1}, {3}}},
      {"cores of both nodes, then second hardware threads",
       6,
       {0, 1, 2, 4, 5, 6},
       {{0}, {2}, {1}, {4}, {6}, {5}}},
      {"half of a core", 3, {0, 1, 5}, {{0}, {1}, {5}}},
      {"one processor", 1, {3}, {}},
      {"one thread", 1, {0, 1}, {}},
      {"not known to the caller", 2, {}, {}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(thread_places(row.threads, row.allowed, tree.root()), row.want);
  }
}

TEST(ThreadPlaces, WhatCannotBeReadIsACore) {
  const CpuList allowed = {1, 3};
  const Places apart = {{1}, {3}};
  EXPECT_EQ(thread_places(2, allowed, "/nowhere"), apart);
  for (const char* list : {"", "a", "0-", "3-1", "0-99999999999", "1,,3", "-1", "3"}) {
    const Tree tree;
    tree.cpu(1, 0, list);
    EXPECT_EQ(thread_places(2, allowed, tree.root()), apart) << list;
  }
  const Tree tree;
  tree.cpu(1, 0, "0-3");
  EXPECT_EQ(thread_places(2, allowed, tree.root()), apart);
  EXPECT_EQ(thread_places(2, CpuList{1, 2, 3, 7}, tree.root()), (Places{{1, 2, 3}, {7}}));
}

TEST(ThreadPlaces, ThreadsOfAPoolKeepToTheirs) {
  const CpuList all = allowed_cpus();
  ASSERT_FALSE(all.empty());
  const Places places = {{all.front()}, {all.back()}};
  ThreadPool pool(2, places);
  ASSERT_EQ(pool.thread_count(), 2U);
  std::vector<CpuList> seen(2);
  std::atomic<int> here{0};
  pool.parallel_for(2, [&](std::size_t, std::size_t worker) {
    // Each thread has one of the tasks: neither ends before the other has begun.
    ++here;
    while (here.load() < 2)
      std::this_thread::yield();
    seen[worker] = allowed_cpus();
  });
  EXPECT_EQ(seen[1], CpuList{all.back()});
  EXPECT_EQ(seen[0], all) << "the caller's own is not touched";
}

}  // namespace
}  // namespace tandem::kernels
