//! This test program is also the init of the sandboxes it makes: started with the right word, it becomes one before
//! anything else happens, as `berth` itself does. So no other program has to be built beside it.

use berth_sandbox::InitCommand;

const WORD: &str = "sandbox-init";

/// How sandboxes of these tests are started.
pub(crate) fn init() -> InitCommand {
    InitCommand { exe: std::env::current_exe().unwrap(), args: vec![WORD.to_owned()] }
}

extern "C" fn become_init() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|word| word == WORD) {
        berth_sandbox::init::run(args);
    }
}

/// Run by the loader before the test harness starts its threads.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = become_init;
