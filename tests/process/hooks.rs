//! The crate's threads call the program's hook.

use crate::child::in_child_for;
use crate::shm;
use shm_pool::channel::{Publisher, Subscriber};
use shm_pool::{threads, Provider};
use shm_pool_support::tasks::{noop_waker, poll_once};

use std::pin::pin;
use std::sync::mpsc;
use std::sync::Mutex;
use std::time::Duration;

fn provider(prefix: &str) -> Provider {
    let builder = Provider::builder().namespace(&shm::namespace(prefix));
    builder.max_bytes(1 << 20).build().unwrap()
}

#[test]
fn each_thread_calls_the_hook() {
    in_child_for("hook", |prefix| {
        let (sender, names) = mpsc::channel();
        let sender = Mutex::new(sender);
        let hook = move |name: &str| {
            sender.lock().unwrap().send(name.to_owned()).unwrap();
            // A panic, without the report that fails the test.
            std::panic::resume_unwind(Box::new("ignored"));
        };
        threads::on_start(hook).unwrap();
        let next = || names.recv_timeout(Duration::from_secs(60)).unwrap();

        let provider = provider(prefix);
        let _publisher = Publisher::create(&provider, "channel").unwrap();
        assert_eq!(next(), "shm-pool-keeper");

        // Each waits: for a name, and for a message.
        let namespace = shm::namespace(prefix);
        let options = || Subscriber::builder().namespace(&namespace);
        let mut early = options().open("absent").unwrap();
        let mut waiting = options().open("channel").unwrap();
        let mut for_a_name = pin!(early.recv_async());
        let mut for_a_message = pin!(waiting.recv_async());
        let waker = noop_waker();
        assert!(poll_once(for_a_name.as_mut(), &waker).is_none());
        assert!(poll_once(for_a_message.as_mut(), &waker).is_none());
        let mut names = [next(), next()];
        names.sort();
        assert_eq!(names, ["shm-pool-await", "shm-pool-names"]);
        threads::on_start(|_| ()).unwrap_err();
    });
}

#[test]
fn a_hook_comes_too_late() {
    in_child_for("late", |prefix| {
        let provider = provider(prefix);
        // A provider starts no thread.
        drop(provider.alloc(64).unwrap());
        let _publisher = Publisher::create(&provider, "channel").unwrap();
        let error = threads::on_start(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains("before the first channel"),
            "{error}"
        );
    });
}
