//! Which CPU a thread runs on.

/// Returns the number of the CPU on which this thread runs at the moment, if the system tells. It is
/// the same in all containers. No system call where glibc or the kernel maps the number.
pub(crate) fn current_cpu() -> Option<u32> {
    // SAFETY: the call has no preconditions.
    let cpu = unsafe { libc::sched_getcpu() };
    u32::try_from(cpu).ok()
}
