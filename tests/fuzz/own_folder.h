// Where feeds write files that are read by their names.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

namespace tandem::fuzz {

/// A folder below TMPDIR, one for the whole process, gone when it ends.
class OwnFolder {
 public:
  explicit OwnFolder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() /
              ("tandem-fuzz-" + name + "-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(path_);
  }

  OwnFolder(const OwnFolder&) = delete;
  OwnFolder& operator=(const OwnFolder&) = delete;

  ~OwnFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] std::string path() const { return path_.string(); }

  /// The path of a file that holds `bytes` and nothing else.
  std::string write(const char* name, std::string_view bytes) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    return file.string();
  }

 private:
  std::filesystem::path path_;
};

}  // namespace tandem::fuzz
