//! Prefetches a cache line for writing, so that the later store does not wait for another core to
//! give the line up.

/// Prefetches the line of this address for writing. Only a performance hint.
#[inline]
pub(crate) fn for_writing<T>(address: *const T) {
    // SAFETY: a hint, which has no observable effect on memory and never faults, whatever the
    // address.
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
