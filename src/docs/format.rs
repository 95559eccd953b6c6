//! The layout of shared memory and of a descriptor, for tools and other languages that read it.
//!
//! A reader must expect any value. All numbers are in native byte order, except the descriptor's,
//! which are little-endian. Lengths are in bytes. Numbers have 8 bytes unless it says otherwise.
//!
//! # Names
//!
//! All objects are files of one directory, by default /dev/shm. A prefix and a channel's name
//! consist of 1 to 64 of `A-Z a-z 0-9 _ -`.
//!
//! | file | is | made by |
//! |---|---|---|
//! | `shm_pool.0123456789abcdef.ctl` | a control object: prefix, provider's id in 16 digits | the provider |
//! | `shm_pool.0123456789abcdef.2f` | a segment with payload: prefix, provider's id, serial number in hexadecimal | the provider |
//! | `shm_pool.camera.channel` | a pair, or a publisher's meeting: prefix, channel's name | the sender, the publisher |
//! | `shm_pool.camera.00000000000000ff.branch` | a publisher's branch: prefix, channel's name, random id | the receiver |
//!
//! # Locks
//!
//! Live processes hold exclusive open file description locks (`F_OFD_SETLK`) on single bytes, which
//! may lie beyond the end of the file. A process that cleans up holds a shared lock.
//!
//! | object | byte | locked by |
//! |---|---|---|
//! | control object | 0 | the provider |
//! | | 1 + slot | the peer in that slot, 0 to 63 |
//! | pair | 0 | the sender, until it is dropped and no loan is out |
//! | | 1 | the receiver, until it and everything that it received are dropped |
//! | meeting | 0 | the publisher |
//! | | 2 + seat | the receiver on that seat, 0 to 63, as in a pair |
//! | branch | 0 and 1 | the receiver, as in a pair |
//!
//! # The control object, version 5
//!
//! The header takes 4096 bytes. The records follow, 128 bytes each.
//!
//! | offset | field | is |
//! |---|---|---|
//! | 0 | `magic` | the bytes `SHMPOOL` and a zero |
//! | 8 | `version` | 4 bytes |
//! | 12 | `state` | 4 bytes: 0 is being made, 1 open, 2 closed |
//! | 16 | `provider` | the provider's id |
//! | 24 | `records` | 4 bytes: the number of records |
//! | 28 | `high_water` | 4 bytes: how many of them may have been used |
//! | 32 | `epochs` | 64, one per peer slot; modulo 4: 0 taken, 1 being vacated, 2 taken by a peer that the owner refuses, 3 free |
//! | 544 | `segments` | 32 serial numbers of segments, 0 for none |
//! | 800 | `quota` | the most bytes that a peer may read or be granted at a time; 0 for any number |
//! | 832 | `memory` | 1 if the owner listens for memory; then 4 bytes: how often memory was released meanwhile |
//! | 896 | `held` | 64, one per peer slot, kept if there is a quota: bits 0 to 47: the bytes that the peer reads or was granted; 48 to 63: a quarter of its epoch, modulo 2^16 |
//!
//! # A record
//!
//! | offset | field | is |
//! |---|---|---|
//! | 0 | `generation` | even: published, and part of the descriptor; odd: closed |
//! | 8 | `lanes` | one byte per peer slot: the lower 5 bits count the peer's open views, the upper 3 the grants that it has not taken up |
//! | 72 | `segment` | the serial number of the message's segment |
//! | 80 | `index` | its index in `segments` |
//! | 88 | `offset` | the message's offset in it |
//! | 96 | `len` | the message's length |
//!
//! # The objects of a channel, version 7
//!
//! All begin with the same 64 bytes:
//!
//! | offset | field | is |
//! |---|---|---|
//! | 0 | `magic` | the bytes `SHMCHAN` and a zero |
//! | 8 | `version` | 4 bytes |
//! | 12 | `state` | 4 bytes: 0 is being made, 1 open, 2 closed, 3 closed because the publisher has disconnected the receiver |
//! | 16 | `provider` | the id of the provider whose buffers are sent |
//! | 24 | `slots` | 4 bytes: one more than the capacity |
//! | 28 | `loans` | 4 bytes: how many buffers the receiver may hold |
//! | 32 | `kind` | 4 bytes: 1 pair, 2 meeting, 3 branch |
//! | 36 | `seats` | 4 bytes: the number of a meeting's seats |
//! | 40 | `on_full` | 4 bytes: 0 block, 1 drop newest, 2 drop oldest |
//! | 44 | `allow_blocking` | 4 bytes: whether a receiver of a meeting may make the publisher wait |
//!
//! A pair and a meeting may declare the type of their messages, in the last words of the first page:
//!
//! | offset | field | is |
//! |---|---|---|
//! | 3968 | `type_align` | 4 bytes: the alignment of a value; 0 if no type is declared |
//! | 3972 | `type_name_len` | 4 bytes: the length of the name, from 1 to 96 |
//! | 3976 | `type_version` | any number |
//! | 3984 | `type_size` | the size of a value, without elements |
//! | 3992 | `type_element` | the size of an element, or 0 |
//! | 4000 | `type_name` | the name, in UTF-8, 96 bytes |
//!
//! A pair and a branch continue with a *bell* of 4 bytes at 64, which the sender rings, one at 128,
//! which the receiver rings, and at 192 the number of returns that the sender has read. A branch
//! has at 256 what its receiver has missed, and at 320 the id of the receiver's process in its own
//! PID namespace (4 bytes). At 4096 are the slots, 64 bytes each, then the returns, 8 bytes per
//! loan, and, from the next multiple of 64 on, the loans, 8 bytes each.
//!
//! | at 256 + | messages |
//! |---|---|
//! | 0 `withdrawn` | withdrawn for newer ones |
//! | 8 `full` | skipped because the slots were full |
//! | 16 `too_many_loans` | skipped because the receiver held as many buffers, or bytes, as it may |
//! | 24 `stalled` | skipped because it was waited for in vain |
//! | 32 `not_connected` | sent before it was connected |
//! | 40 `limit` | twice the number for which the publisher has found no loan, plus 1 if no buffer was sent since |
//!
//! | word of a slot | is |
//! |---|---|
//! | 0 | the sequence: `t` if free for message `t`, `t` + 1 if it carries it |
//! | 1 | bits 0 to 7: 1 bytes, 2 a buffer; 8 to 31: how many bytes, or the loan's number; 32 to 63: how many messages were left out before this one |
//! | 2 to 7 | the bytes; or the segment's serial number, the offset in it, the length, a check, and two unused words |
//!
//! | word | is |
//! |---|---|
//! | of a return | bits 0 to 23: the loan's number; 24 to 63: 1 + the number of earlier returns. With `n` loans, return `t`, counted from 0, is in word `t` modulo `n` |
//! | of a loan | 0 if free, as is a loan with an unread return; else bits 0 to 36: 1 + the message's length; 37 to 63: how many messages were sent before it, modulo 2^27 |
//!
//! A meeting has at offset 64 the number of receivers that have joined (4 bytes), and from 128 on
//! 64 seats of 16 bytes: the error number with which the publisher refuses the receiver (4 bytes),
//! or 0, and at 8 the id of the branch that was last announced there.
//!
//! # A descriptor, version 1
//!
//! | offset | bytes | is |
//! |---|---|---|
//! | 0 | 2 | 0x5bd7 |
//! | 2 | 1 | the version |
//! | 3 | 1 | 0, or 1 + the slot of the peer that the message is granted to |
//! | 4 | 4 | the number of the record |
//! | 8 | 8 | the provider's id |
//! | 16 | 8 | the generation |
//! | 24 | 6 | the message's length |
//! | 30 | 2 | a check of all other bytes |
//!
//! The check folds the four words of 8 bytes, the last one without the check: from 0, for each word
//! the sum becomes (sum xor word) times 6364136223846793005, modulo 2^64, then itself xor itself
//! shifted right by 29. Its four parts of 16 bits, combined by xor, are the check.
//!
//! Provider 0x0123456789abcdef, record 7, generation 0x1122334455667788, 1000 bytes, granted to the
//! peer in slot 2:
//!
//! ```text
//! d7 5b 01 03 07 00 00 00 ef cd ab 89 67 45 23 01
//! 88 77 66 55 44 33 22 11 e8 03 00 00 00 00 e3 c1
//! ```

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::channel::{format as channel, OnFull};
    use crate::os::name::{Name, Namespace};
    use crate::protocol::control;
    use crate::protocol::ids::{control_name, segment_name, ProviderId};
    use crate::protocol::record;
    use crate::Descriptor;

    const TEXT: &str = include_str!("format.rs");

    const ID: ProviderId = ProviderId(0x0123_4567_89ab_cdef);

    /// The text under a heading.
    fn section(heading: &str) -> &'static str {
        let (_, rest) = TEXT.split_once(&format!("//! # {heading}")).unwrap_or_else(|| panic!("no section {heading}"));
        rest.split("\n//! # ").next().unwrap()
    }

    fn assert_says(heading: &str, text: &str) {
        assert!(section(heading).contains(text), "{heading} does not say {text:?}");
    }

    /// Checks the offsets, on which tools in other languages depend.
    #[test]
    fn documented_fields() {
        let tables = [
            ("The control object", control::OFFSETS.to_vec()),
            ("A record", record::OFFSETS.to_vec()),
            ("The objects of a channel", channel::offsets()),
        ];
        for (heading, offsets) in tables {
            for (field, offset) in &offsets {
                assert_says(heading, &format!("\n//! | {offset} | `{field}` |"));
            }
            let rows = section(heading).matches("| `").count();
            assert_eq!(rows, offsets.len(), "{heading} has a row too many, or one is not checked");
        }
    }

    /// The same, for the cache lines after the first.
    #[test]
    fn documented_bells_and_counts() {
        for (field, offset) in channel::HEADER {
            assert_says("The objects of a channel", &format!(" at {offset}"));
            assert!(offset % 64 == 0, "{field} shares a line");
        }
        for (field, offset) in channel::MISSED {
            assert_says("The objects of a channel", &format!("\n//! | {offset} `{field}` |"));
        }
    }

    #[test]
    fn documented_versions_and_names() {
        assert_says("The control object", &format!(", version {}\n", control::VERSION));
        assert_says("The objects of a channel", &format!(", version {}\n", channel::VERSION));
        let names = Namespace::in_shm("shm_pool");
        let file = |name: Name| name.path().rsplit('/').next().unwrap().to_owned();
        let all = [control_name(&names, ID), segment_name(&names, ID, 0x2f)].into_iter().chain(channel::names(&names));
        all.for_each(|name| assert_says("Names", &format!("\n//! | `{}` |", file(name))));
        for (rule, text) in
            [(OnFull::Block, "block"), (OnFull::DropNewest, "drop newest"), (OnFull::DropOldest, "drop oldest")]
        {
            assert_says("The objects of a channel", &format!("{} {text}", rule as u32));
        }
    }

    #[test]
    fn documented_descriptor() {
        let descriptor =
            Descriptor { provider: ID, record: 7, generation: 0x1122_3344_5566_7788, len: 1000, granted: Some(2) };
        let bytes = descriptor.to_bytes().map(|byte| format!("{byte:02x}"));
        let [first, second] = [&bytes[..16], &bytes[16..]].map(|line| line.join(" "));
        assert_says("A descriptor", &format!("//! {first}\n//! {second}\n"));
    }
}
