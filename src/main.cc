#include "cli/app.h"

int main(int argc, char** argv) { return lk::run_app(argc, argv); }
