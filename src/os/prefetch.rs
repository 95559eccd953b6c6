//! Fetches a cache line before it is written, so that the store does not wait for another process's
//! core to give it up.

/// Fetches the line of this address for writing. A hint: nothing depends on it.
#[inline]
pub(crate) fn for_writing<T>(address: *const T) {
    // SAFETY: a hint, which accesses no memory as far as the program can tell, and never faults,
    // whatever the address.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: a hint, which never faults, whatever the address.
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    unsafe {
        std::arch::asm!("prfm pstl1keep, [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
    let _ = address;
}
