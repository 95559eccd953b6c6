//! The location of the keeper's robust list, as the kernel reports it (see `os/robust_list.rs`).

use crate::child::Child;
use crate::shm::{self, Names};
use crate::sys;
use crate::wire::{Link, Message};
use shm_pool::channel::{Receiver, Sender};
use shm_pool::Provider;
use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;

const CHANNELS: usize = 3;

/// Guards against a list that the kernel unmaps before walking it when it kills a process for lack
/// of memory, or that a peer can write: the other ends would stay parked.
#[test]
fn robust_list_is_private() {
    let names = Names::new("keeper");
    let child = Child::start("keeper", &[names.prefix()]);
    child.expect_done();
    child.finish();
}

role!("keeper", role);

/// The role: opens both ends of some channels, and checks the list of this process, which no other
/// test changes.
fn role(link: &Link, arguments: &[&str]) {
    let (provider, client) =
        (Provider::builder().name_prefix(arguments[0]).build().unwrap(), shm::client(arguments[0]));
    let ends: Vec<_> = (0..CHANNELS)
        .map(|number| {
            let name = format!("c{number}");
            (Sender::create(&provider, &name).unwrap(), Receiver::open(&client, &name).unwrap())
        })
        .collect();
    let list = list();
    assert_eq!(list.len(), 1 + 2 * CHANNELS, "the head, and an entry for each end");
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    for address in list {
        let mapping = maps.lines().find(|line| range(line).contains(&address)).expect("a mapped address");
        assert!(mapping.split(' ').nth(1).expect("permissions").ends_with('s'), "private: {mapping}");
        assert!(!mapping.contains("/dev/shm/"), "peers have it too: {mapping}");
    }
    drop(ends);
    assert_eq!(self::list().len(), 1, "the head alone");
    link.send(&Message::Done);
}

/// The addresses of the list's head and of its entries.
fn list() -> Vec<u64> {
    let memory = File::open("/proc/self/mem").unwrap();
    let next = |at: u64| {
        let mut address = [0; 8];
        memory.read_exact_at(&mut address, at).expect("an entry that is mapped");
        u64::from_ne_bytes(address)
    };
    let head = sys::robust_list(keeper());
    let entries = std::iter::successors(Some(head), |&at| Some(next(at)).filter(|&next| next != head));
    entries.take(100).collect()
}

/// The keeper's thread.
fn keeper() -> libc::pid_t {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let is_keeper = |path: &fs::DirEntry| fs::read_to_string(path.path().join("comm")).unwrap() == "shm-pool-keeper\n";
    let mut keepers = threads.filter(is_keeper);
    let keeper = keepers.next().expect("the first channel has started it");
    assert!(keepers.next().is_none(), "one for each process");
    keeper.file_name().to_str().unwrap().parse().unwrap()
}

/// The addresses of a mapping.
fn range(line: &str) -> Range<u64> {
    let (start, end) = line.split(' ').next().unwrap().split_once('-').expect("two addresses");
    let address = |text| u64::from_str_radix(text, 16).unwrap();
    address(start)..address(end)
}
