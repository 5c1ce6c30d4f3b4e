// A child process of the benchmark.
#pragma once

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

namespace tandem::bench {

/// A child process that ends with this object; its stdout is `out`.
class Child {
 public:
  explicit Child(const std::vector<std::string>& words) {
    std::array<int, 2> pipe{};
    if (::pipe(pipe.data()) != 0) std::abort();
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(pipe[1], 1);
      ::close(pipe[0]);
      ::close(pipe[1]);
      std::vector<char*> argv;
      for (const std::string& word : words)
        argv.push_back(const_cast<char*>(word.c_str()));
      argv.push_back(nullptr);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    out_ = pipe[0];
  }

  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  ~Child() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
    ::close(out_);
  }

  [[nodiscard]] std::string first_line() const {
    std::string line;
    char c = 0;
    while (::read(out_, &c, 1) == 1 && c != '\n')
      line.push_back(c);
    return line;
  }

  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  int out_ = -1;
};

}  // namespace tandem::bench
