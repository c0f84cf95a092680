//! Real sandboxes on the kernel at hand: as root, and (by starting this program again) as an ordinary user.

mod sandbox {
    pub(crate) mod crash;
    pub(crate) mod egress;
    pub(crate) mod execs;
    pub(crate) mod isolation;
    pub(crate) mod lifecycle;
    pub(crate) mod limits;
    pub(crate) mod stage;
    pub(crate) mod unprivileged;
}
