#include "common/transfer/idle_cpu.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace tandem::transfer {
namespace {

/// /proc/stat of processors that have been idle for so many ticks each.
std::string stat_of(std::uint64_t ticks) {
  std::string text = "cpu  1 2 3 99999 5 6 7 0 0 0\n";
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    text += "cpu" + std::to_string(cpu) + " 1 2 3 " + std::to_string(ticks) + " 5 6 7 0 0 0\n";
  return text + "intr 1 2 3\ncpufreq 7\n";
}

class StatFile {
 public:
  StatFile() : path_(::testing::TempDir() + "stat_" + std::to_string(::getpid())) {}

  StatFile(const StatFile&) = delete;
  StatFile& operator=(const StatFile&) = delete;

  ~StatFile() { std::filesystem::remove(path_); }

  void write(const std::string& text) const { std::ofstream(path_) << text; }

  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(IdleCpu, CountsTheProcessorsThatItMayUse) {
  cpu_set_t bound;
  CPU_ZERO(&bound);
  CPU_SET(1, &bound);
  CPU_SET(12, &bound);
  const std::string text =
      "cpu  9 9 9 900 0\ncpu0 1 1 1 10 0\ncpu1 1 1 1 20 0\ncpu12 1 1 1 40 0\ncpu2 1 1 1 80\n";
  EXPECT_EQ(IdleCpu::idle_ticks(text, bound), 60U);
  CPU_ZERO(&bound);
  EXPECT_FALSE(IdleCpu::idle_ticks(text, bound));
  CPU_SET(3, &bound);
  EXPECT_FALSE(IdleCpu::idle_ticks("cpu3 1 2\ncpu3x 1 1 1 5\n", bound));
  EXPECT_FALSE(IdleCpu::idle_ticks("", bound));
}

TEST(IdleCpu, IsSpareWhileHalfAProcessorIsIdle) {
  const StatFile file;
  IdleCpu idle(file.path());
  const Time start = steady_clock().now();
  file.write(stat_of(1000));
  EXPECT_FALSE(idle.spare(start)) << "nothing is known yet";
  file.write(stat_of(1000 + 5 * 10));
  EXPECT_FALSE(idle.spare(start + milliseconds(49))) << "too early to look again";
  EXPECT_TRUE(idle.spare(start + milliseconds(50)));
  EXPECT_TRUE(idle.spare(start + milliseconds(90))) << "as the last look said";
  EXPECT_FALSE(idle.spare(start + milliseconds(100))) << "no tick since";
  file.write(stat_of(2000));
  EXPECT_FALSE(idle.spare(start + seconds(60))) << "who knows what of that minute is left";
  file.write(stat_of(100));
  EXPECT_FALSE(idle.spare(start + seconds(60) + milliseconds(50))) << "runs backwards";
}

TEST(IdleCpu, WithoutTheFileNothingIsIdle) {
  IdleCpu idle("/nowhere/stat");
  const Time start = steady_clock().now();
  EXPECT_FALSE(idle.spare(start));
  EXPECT_FALSE(idle.spare(start + milliseconds(50)));
  EXPECT_FALSE(idle.spare(start + milliseconds(100)));
}

}  // namespace
}  // namespace tandem::transfer
