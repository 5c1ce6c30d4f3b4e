#include "common/args/cgroup.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace tandem::args {
namespace {

class Cgroups : public testing::Test {
 public:
  ~Cgroups() override { std::filesystem::remove_all(mount_); }

 protected:
  Cgroups() {
    std::string pattern = (std::filesystem::temp_directory_path() / "cgroups-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    mount_ = pattern;
  }

  void put(const std::string& file, const std::string& text) const {
    const std::filesystem::path path = mount_ + "/" + file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text << "\n";
  }

  std::string mount_;
};

TEST_F(Cgroups, TheSmallestLimitOnTheWayUpCounts) {
  put("memory.max", "9000");
  put("a/memory.max", "500");
  put("a/b/memory.max", "max");
  put("a/b/cpu.max", "150000 100000");
  put("a/cpu.max", "max 100000");
  put("other/memory.max", "7");
  const CgroupLimits found = cgroup_limits(mount_, "0::/a/b\n");
  EXPECT_EQ(found.memory_bytes, 500U);
  EXPECT_EQ(found.cpus, 1.5);
  EXPECT_EQ(cgroup_limits(mount_, "0::/\n").memory_bytes, 9000U);
  EXPECT_EQ(cgroup_limits(mount_, "").memory_bytes, 9000U);
}

TEST_F(Cgroups, VersionOneNamesItsControllers) {
  put("memory/memory.limit_in_bytes", "9223372036854771712");
  put("memory/x/memory.limit_in_bytes", "60000000");
  const CgroupLimits found =
      cgroup_limits(mount_, "4:cpu,cpuacct:/y\n3:hugetlb,memory:/x/gone\n0::/\n");
  EXPECT_EQ(found.memory_bytes, 60000000U);
  EXPECT_EQ(found.cpus, std::nullopt);
}

TEST_F(Cgroups, NothingToSeeIsNoLimit) {
  const CgroupLimits found = cgroup_limits(mount_ + "/none", "nonsense\n0::/a\n:");
  EXPECT_EQ(found.memory_bytes, std::nullopt);
  EXPECT_EQ(found.cpus, std::nullopt);
}

}  // namespace
}  // namespace tandem::args
