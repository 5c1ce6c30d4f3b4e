#include "common/worker/worker_main.h"

int main(int argc, char** argv) {
  return tandem::worker::worker_main(tandem::args::Program::kPrefill, argc, argv);
}
