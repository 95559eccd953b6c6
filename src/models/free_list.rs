//! Loom models of chunks that are taken and pushed while the pool closes.

use super::*;
use loom::sync::atomic::AtomicUsize;
use loom::sync::Arc;
use loom::thread;

struct Places {
    free_list: FreeList<Carry, Carry>,
}

impl Places {
    fn new(keeps_nothing: bool) -> Arc<Self> {
        let places = Self {
            free_list: FreeList::new(keeps_nothing),
        };
        if !keeps_nothing {
            places.free_list.open_idle(1, 1);
            assert!(places.free_list.open_leased(2, 2).is_ok());
        }
        Arc::new(places)
    }

    fn close(&self) {
        self.free_list.close(destroy);
    }
}

/// A stand-in for a chunk: keeps the places alive and counts its own destruction.
struct Item {
    places: Arc<Places>,
    bytes: loom::cell::UnsafeCell<u32>,
    destroyed: Arc<AtomicUsize>,
}

// SAFETY: like a real chunk, it has one holder at a time (I3).
unsafe impl Send for Item {}
// SAFETY: like a real chunk, only its one holder uses it (I3).
unsafe impl Sync for Item {}

fn destroy(Carry(item): Carry) {
    // SAFETY: the caller owns the item (I3), which `item` made from a box.
    let item = unsafe { Box::from_raw(item.as_ptr()) };
    item.bytes.with(|_| ());
    item.destroyed.fetch_add(1, Ordering::Relaxed);
}

fn item(places: &Arc<Places>, destroyed: &Arc<AtomicUsize>) -> Carry {
    let bytes = loom::cell::UnsafeCell::new(0);
    let item = Item {
        places: places.clone(),
        bytes,
        destroyed: destroyed.clone(),
    };
    Carry(NonNull::new(Box::into_raw(Box::new(item))).unwrap())
}

struct Carry(NonNull<Item>);
// SAFETY: it moves the item's ownership to another thread, and an item is `Send`.
unsafe impl Send for Carry {}
// SAFETY: `into_raw` and `from_raw` keep the pointer, which is all there is to it.
unsafe impl Owner for Carry {
    type Owned = Item;

    fn into_raw(self) -> NonNull<Item> {
        self.0
    }

    unsafe fn from_raw(owned: NonNull<Item>) -> Self {
        Self(owned)
    }
}

fn drop_handle(handle: Carry, leased: bool) {
    let handle = handle;
    // SAFETY: this thread holds the item (I3).
    let (places, bytes) = unsafe {
        (
            NonNull::from(&*handle.0.as_ref().places),
            &handle.0.as_ref().bytes,
        )
    };
    // SAFETY: only the holder writes (I3).
    bytes.with_mut(|b| unsafe { *b += 1 });
    // SAFETY: the item keeps the places alive until it is pushed, and a push touches nothing
    // after that.
    let places = unsafe { places.as_ref() };
    let pushed = if leased {
        places.free_list.push_leased(handle)
    } else {
        places
            .free_list
            .push_hot(handle)
            .or_else(|handle| places.free_list.push(handle))
    };
    if let Err(item) = pushed {
        destroy(item);
    }
}

/// Every chunk is destroyed once, and the last one frees the free list (loom reports a leaked `Arc`).
fn close_and_drain(leased: [bool; 2]) {
    loom::model(move || {
        let destroyed = Arc::new(AtomicUsize::new(0));
        let places = Places::new(false);
        let handles = leased.map(|leased| (item(&places, &destroyed), leased));
        let threads =
            handles.map(|(handle, leased)| thread::spawn(move || drop_handle(handle, leased)));
        places.close();
        drop(places);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(
            destroyed.load(Ordering::Relaxed),
            2,
            "a chunk was lost, or destroyed twice"
        );
    });
}

#[test]
fn close_drains_hot_slot_and_queue() {
    close_and_drain([false, false]);
}

#[test]
fn close_drains_leased_queue() {
    close_and_drain([true, false]);
}

/// A take that disturbs the seal loses no chunk and invents none.
#[test]
fn free_list_that_keeps_nothing() {
    loom::model(|| {
        let destroyed = Arc::new(AtomicUsize::new(0));
        let places = Places::new(true);
        let handle = item(&places, &destroyed);
        let releasing = thread::spawn(move || drop_handle(handle, false));
        let taker = {
            let places = places.clone();
            thread::spawn(move || places.free_list.take_hot().map(destroy))
        };
        let taken = places.free_list.take_hot().map(destroy);
        taker.join().unwrap();
        releasing.join().unwrap();
        places
            .free_list
            .close(|_| panic!("the free_list kept a chunk"));
        drop(places);
        let _ = taken;
        assert_eq!(destroyed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn take_acquires_release() {
    loom::model(|| {
        let destroyed = Arc::new(AtomicUsize::new(0));
        let places = Places::new(false);
        let first = item(&places, &destroyed);
        let second = item(&places, &destroyed);
        let releasing = thread::spawn(move || {
            drop_handle(first, false);
            drop_handle(second, false);
        });
        let taken = places
            .free_list
            .take_hot()
            .or_else(|| places.free_list.take_idle().map(|(item, _)| item));
        if let Some(taken) = taken {
            // SAFETY: taken out of its place, so this thread is the holder (I3).
            unsafe { taken.0.as_ref() }
                .bytes
                .with_mut(|b| unsafe { *b += 1 });
            drop_handle(taken, false);
        }
        releasing.join().unwrap();
        places.close();
        drop(places);
        assert_eq!(destroyed.load(Ordering::Relaxed), 2);
    });
}
