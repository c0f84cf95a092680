//! The broker's RPCs, one file each. All of them first have lifecycle check the claim they are called under.

pub(crate) mod collect;
pub(crate) mod exec;
pub(crate) mod list_providers;
pub(crate) mod read_file;
pub(crate) mod write_file;
