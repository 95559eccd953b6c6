//! Values that C holds: handles of fixed size that need no heap, arguments, and options.

use crate::finalize;
use crate::status::{Failure, Status};
use shm_pool::Namespace;
use std::ffi::{c_char, c_void, CStr};
use std::mem::{size_of, MaybeUninit};
use std::ptr;
use std::time::Duration;

/// The number of nanoseconds that means "without limit".
pub const SHM_POOL_FOREVER: u64 = u64::MAX;

/// In options, where 0 means "the default": the number zero.
pub const SHM_POOL_ZERO: u64 = u64::MAX - 1;

/// What the bytes of a handle mean. The layout is defined: a tag, and the value behind it. Bytes that
/// are all zero are `Empty`.
#[repr(u64)]
pub(crate) enum Slot<T> {
    Empty = 0,
    Full(T) = 1,
}

/// A struct of C whose bytes are a [`Slot`].
///
/// # Safety
///
/// Size and alignment are at least those of `Slot<Self::Content>`, and only this trait writes it.
pub(crate) unsafe trait Value: Sized {
    type Content;

    /// Sets a result: to the content, or to an empty handle with the error. The previous bytes may be
    /// uninitialised.
    #[inline]
    fn fill(
        out: Option<&mut MaybeUninit<Self>>,
        name: &'static str,
        make: impl FnOnce() -> Result<Self::Content, Failure>,
    ) -> Result<(), Failure> {
        let out: *mut Slot<Self::Content> = out.required(name)?.as_mut_ptr().cast();
        // In each arm, so that the content is moved once.
        match make() {
            Ok(content) => {
                // SAFETY: `out` has room for a slot.
                unsafe { ptr::write(out, Slot::Full(content)) };
                Ok(())
            }
            Err(failure) => {
                // SAFETY: as above.
                unsafe { ptr::write(out, Slot::Empty) };
                Err(failure)
            }
        }
    }

    #[inline]
    fn slot(&self) -> &Slot<Self::Content> {
        // SAFETY: C initialises the struct with zeros or by a call, which wrote a slot.
        unsafe { &*ptr::from_ref(self).cast() }
    }

    #[inline]
    fn slot_mut(&mut self) -> &mut Slot<Self::Content> {
        // SAFETY: as for `slot`.
        unsafe { &mut *ptr::from_mut(self).cast() }
    }

    #[inline]
    fn get(&self) -> Option<&Self::Content> {
        match self.slot() {
            Slot::Empty => None,
            Slot::Full(content) => Some(content),
        }
    }

    #[inline]
    fn get_mut(&mut self) -> Option<&mut Self::Content> {
        match self.slot_mut() {
            Slot::Empty => None,
            Slot::Full(content) => Some(content),
        }
    }

    /// Moves the content out.
    #[inline]
    fn take(&mut self) -> Option<Self::Content> {
        match std::mem::replace(self.slot_mut(), Slot::Empty) {
            Slot::Empty => None,
            Slot::Full(content) => Some(content),
        }
    }

    /// Puts content back that [`take`](Self::take) has moved out.
    #[inline]
    fn put(&mut self, content: Self::Content) {
        *self.slot_mut() = Slot::Full(content);
    }
}

/// Returns the content of a handle, or `None` if the argument is null or the handle is empty.
#[inline]
pub(crate) fn content<V: Value>(handle: Option<&V>) -> Option<&V::Content> {
    handle?.get()
}

/// [`content`], to change it.
#[inline]
pub(crate) fn content_mut<V: Value>(handle: Option<&mut V>) -> Option<&mut V::Content> {
    handle?.get_mut()
}

/// Moves the content out of a handle. Returns `None` if the argument is null or the handle is empty.
#[inline]
pub(crate) fn take<V: Value>(handle: Option<&mut V>) -> Option<V::Content> {
    handle?.take()
}

macro_rules! value {
    ($name:ty: $content:ty) => {
        const _: () = {
            type Slot = $crate::value::Slot<$content>;
            assert!(size_of::<Slot>() <= size_of::<$name>());
            assert!(align_of::<Slot>() <= align_of::<$name>());
        };
        // SAFETY: checked by the lines above; the field is private to this module, which does not use
        // it.
        unsafe impl $crate::value::Value for $name {
            type Content = $content;
        }
    };
}
pub(crate) use value;

/// Arguments that must not be null, or handles that must not be empty.
pub(crate) trait Required: Sized {
    type Target;
    fn required(self, name: &'static str) -> Result<Self::Target, Failure>;
}

impl<T> Required for Option<T> {
    type Target = T;

    #[inline]
    fn required(self, name: &'static str) -> Result<T, Failure> {
        self.ok_or_else(|| missing(name))
    }
}

#[cold]
fn missing(name: &'static str) -> Failure {
    Failure::new(
        Status::InvalidArgument,
        format!("argument {name} is NULL, or empty"),
    )
}

/// Sets a result: to a new box, or to null with the error.
pub(crate) fn create<T>(
    out: Option<&mut MaybeUninit<Option<Box<T>>>>,
    name: &'static str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let out = out.required(name)?.write(None);
    *out = Some(Box::new(make()?));
    Ok(())
}

/// [`create`] for an object that `shm_pool_finalize` ends. Its counterpart is
/// [`destroy`](crate::finalize::destroy).
pub(crate) fn create_listed<T>(
    out: Option<&mut MaybeUninit<Option<Box<T>>>>,
    name: &'static str,
    make: impl FnOnce() -> Result<T, Failure>,
) -> Result<(), Failure> {
    let out = out.required(name)?.write(None);
    let object = out.insert(Box::new(make()?));
    finalize::add(object);
    Ok(())
}

#[inline]
pub(crate) fn timeout(nanoseconds: u64) -> Duration {
    match nanoseconds {
        SHM_POOL_FOREVER => Duration::MAX,
        _ => Duration::from_nanos(nanoseconds),
    }
}

/// Reads an option: `None` for the default.
pub(crate) fn option(value: u64) -> Option<u64> {
    match value {
        0 => None,
        SHM_POOL_ZERO => Some(0),
        _ => Some(value),
    }
}

pub(crate) fn size_option(value: u64) -> Option<usize> {
    option(value).map(size)
}

/// Converts a size; one that no memory has is the largest.
pub(crate) fn size(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

pub(crate) fn u32_option(value: u64, name: &'static str) -> Result<Option<u32>, Failure> {
    let Some(value) = option(value) else {
        return Ok(None);
    };
    match u32::try_from(value) {
        Ok(value) => Ok(Some(value)),
        Err(_) => Err(Failure::new(
            Status::InvalidArgument,
            format!("option {name} is too large"),
        )),
    }
}

pub(crate) fn time_option(value: u64) -> Option<Duration> {
    option(value).map(timeout)
}

/// Checks the fields that a later version may use.
pub(crate) fn check_reserved(reserved: &[u64]) -> Result<(), Failure> {
    if reserved.iter().all(|&word| word == 0) {
        return Ok(());
    }
    let text = "a reserved field of the options is not zero; \
                initialise them, or use the library of that version";
    Err(Failure::new(Status::InvalidArgument, text.to_owned()))
}

/// Reads a string: `None` for null.
///
/// # Safety
///
/// `text` is null, or ends with a NUL and stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(
    text: *const c_char,
    name: &'static str,
) -> Result<Option<&'a str>, Failure> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Failure::new(
            Status::InvalidArgument,
            format!("{name} is not UTF-8"),
        )),
    }
}

/// Reads `len` bytes.
///
/// # Safety
///
/// `bytes` is null, or points to `len` bytes that stay unchanged for `'a`.
#[inline]
pub(crate) unsafe fn bytes<'a>(bytes: *const c_void, len: usize) -> Result<&'a [u8], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if bytes.is_null() || len > isize::MAX as usize {
        return Err(missing("bytes"));
    }
    // SAFETY: by this function's contract, and the check of the length.
    Ok(unsafe { std::slice::from_raw_parts(bytes.cast(), len) })
}

/// Reads an array: empty for null and a count of 0.
///
/// # Safety
///
/// `items` is null, or points to `count` items that stay unchanged for `'a`.
pub(crate) unsafe fn array<'a, T>(
    items: *const T,
    count: usize,
    name: &'static str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if items.is_null() || count > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(missing(name));
    }
    // SAFETY: by this function's contract, and the check of the count.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// Copies as many items as fit into an array, and returns how many there are.
///
/// # Safety
///
/// `array` is null, or has room for `capacity` items.
pub(crate) unsafe fn copy_out<T>(
    items: impl Iterator<Item = T>,
    array: *mut T,
    capacity: usize,
) -> usize {
    let mut count = 0;
    for item in items {
        if count < capacity && !array.is_null() {
            // SAFETY: `count` is below the array's capacity.
            let place = unsafe { array.add(count) };
            // SAFETY: as above.
            unsafe { place.write(item) };
        }
        count += 1;
    }
    count
}

/// Returns the namespace of options.
///
/// # Safety
///
/// The strings are NULL, or end with a NUL.
pub(crate) unsafe fn namespace(
    directory: *const c_char,
    name_prefix: *const c_char,
) -> Result<Namespace, Failure> {
    let mut namespace = Namespace::default();
    // SAFETY: by this function's contract.
    if let Some(prefix) = unsafe { text(name_prefix, "name_prefix")? } {
        namespace = Namespace::new(prefix)?;
    }
    // SAFETY: by this function's contract.
    if let Some(directory) = unsafe { text(directory, "directory")? } {
        namespace = namespace.in_directory(directory)?;
    }
    Ok(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    struct Holder {
        opaque: [u64; 4],
    }
    value!(Holder: Box<u64>);

    #[test]
    fn zeros_are_empty() {
        let mut holder = Holder { opaque: [0; 4] };
        assert!(holder.get().is_none() && holder.take().is_none());
        holder.put(Box::new(7));
        assert_eq!(holder.get().map(|number| **number), Some(7));
        assert_eq!(holder.take(), Some(Box::new(7)));
        assert!(holder.get_mut().is_none());
        assert_eq!(holder.opaque[0], 0);
    }

    #[test]
    fn options() {
        assert_eq!([0, 1, SHM_POOL_ZERO].map(option), [None, Some(1), Some(0)]);
        let times = [0, 1, SHM_POOL_ZERO, SHM_POOL_FOREVER].map(time_option);
        assert_eq!(
            times,
            [
                None,
                Some(Duration::from_nanos(1)),
                Some(Duration::ZERO),
                Some(Duration::MAX)
            ]
        );
        assert!(u32_option(1 << 32, "mode").is_err());
        assert!(check_reserved(&[0, 1]).is_err());
    }
}
