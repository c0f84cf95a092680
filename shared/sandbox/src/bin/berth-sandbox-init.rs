//! The init of a sandbox as a program of its own, for tests; the all-in-one binary carries the same entry.

fn main() {
    berth_sandbox::init::run(std::env::args_os().skip(1))
}
