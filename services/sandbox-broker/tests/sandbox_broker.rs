//! The broker whole: real local sandboxes, a real git server, lifecycle played by an in-process fake.

#[path = "../src/provider/conformance.rs"]
mod conformance;

mod sandbox_broker {
    mod become_init;
    mod bootstrap;
    mod collect;
    mod exec;
    mod fake;
    mod files;
    mod local;
    mod private;
    mod push;
    mod release;
    mod repository;
    mod work;
    mod world;
}
