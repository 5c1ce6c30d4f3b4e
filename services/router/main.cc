#include "common/fleet/router_main.h"

int main(int argc, char** argv) {
  return tandem::fleet::router_main(argc, argv);
}
