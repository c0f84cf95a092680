//! Real sandboxes on this kernel.
