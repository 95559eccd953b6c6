//! A record at its limits: every value of a lane under every operation, and the last generations.

#![forbid(unsafe_code)]

use super::*;

const PLACE: Place = Place {
    segment: 1,
    index: 2,
    offset: 3,
    len: 4,
};
const GENERATION: u64 = 42;

/// Slots at both ends of a word, in the middle of one, and in the last word.
const SLOTS: [usize; 5] = [0, 3, 7, 8, PEERS - 1];

fn published() -> Record {
    let record = Record::new();
    record.close_at(GENERATION - 1);
    record.publish(GENERATION, PLACE);
    record
}

fn record(slot: usize, value: u64, neighbours: u64) -> Record {
    let record = published();
    for peer in 0..PEERS {
        let value = if peer == slot { value } else { neighbours };
        record.change(peer, |_| Ok(value)).unwrap();
    }
    record
}

fn lane_of(record: &Record, slot: usize) -> u64 {
    let (word, shift) = lane(slot);
    record.lanes[word].load(Ordering::Relaxed) >> shift & 0xff
}

/// `None` if it is refused and changes nothing.
type Expected = fn(grants: u64, leases: u64) -> Option<(u64, u64)>;

type Operation = fn(&Record, usize) -> Result<(), Refused>;

/// A full counter spills over neither into its peer's other counter nor into another lane.
#[test]
fn lanes_do_not_carry() {
    let operations: [(&str, Operation, Expected); 8] = [
        (
            "attach",
            |record, slot| record.attach(slot, GENERATION).map(drop),
            |grants, leases| (leases < MAX_LEASES).then_some((grants, leases + 1)),
        ),
        (
            "attach too late",
            |record, slot| record.attach(slot, GENERATION - 2).map(drop),
            |_, _| None,
        ),
        (
            "renew",
            |record, slot| record.renew(slot),
            |grants, leases| (leases < MAX_LEASES).then_some((grants, leases + 1)),
        ),
        (
            "accept",
            |record, slot| record.accept(slot, GENERATION).map(drop),
            |grants, leases| (grants > 0 && leases < MAX_LEASES).then(|| (grants - 1, leases + 1)),
        ),
        (
            "accept too late",
            |record, slot| record.accept(slot, GENERATION - 2).map(drop),
            |_, _| None,
        ),
        (
            "grant",
            |record, slot| record.grant(slot),
            |grants, leases| (grants < MAX_GRANTS).then_some((grants + 1, leases)),
        ),
        (
            "put back",
            |record, slot| {
                record.put_back(slot);
                Ok(())
            },
            |grants, leases| Some(((grants + 1).min(MAX_GRANTS), leases.saturating_sub(1))),
        ),
        (
            "clear",
            |record, slot| record.clear(slot).then_some(()).ok_or(Refused::Stale),
            |grants, leases| (grants + leases > 0).then_some((0, 0)),
        ),
    ];
    for (name, operation, expected) in operations {
        for (value, slot) in (0..=0xff).flat_map(|value| SLOTS.map(|slot| (value, slot))) {
            let next = expected(value / GRANT, value % GRANT);
            for neighbours in [0, 0xff] {
                let record = record(slot, value, neighbours);
                assert_eq!(
                    operation(&record, slot).is_ok(),
                    next.is_some(),
                    "{name} of lane {value:#04x}"
                );
                let lane = next.map_or(value, |(grants, leases)| grants * GRANT + leases);
                assert_eq!(
                    lane_of(&record, slot),
                    lane,
                    "{name} of lane {value:#04x} in slot {slot}"
                );
                let mut others = (0..PEERS).filter(|&other| other != slot);
                let is_alone = others.all(|other| lane_of(&record, other) == neighbours);
                assert!(
                    is_alone,
                    "{name} of lane {value:#04x} in slot {slot} changed another one's"
                );
            }
        }
    }
}

#[test]
fn lane_limits() {
    for slot in SLOTS {
        let record = record(slot, MAX_GRANTS * GRANT + MAX_LEASES, 0);
        for left in (0..MAX_LEASES).rev() {
            record.release(slot);
            assert_eq!(lane_of(&record, slot), MAX_GRANTS * GRANT + left);
        }
        for left in (0..MAX_GRANTS).rev() {
            record.revoke(slot);
            assert_eq!(lane_of(&record, slot), left * GRANT);
        }
        record.revoke(slot);
        record.release(slot);
        assert!(!record.is_leased(), "there was nothing left");
    }
}

/// After the last generation, messages are published in 2: not in 0, which no peer can attach to.
#[test]
fn generation_wraps() {
    assert_eq!(
        [1, 41, u64::MAX - 2, u64::MAX].map(published_after),
        [2, 42, u64::MAX - 1, 2]
    );
    let record = Record::new();
    let mut generation = u64::MAX - 1;
    record.publish(generation, PLACE);
    assert_eq!(
        record.attach(5, generation),
        Ok(PLACE),
        "the last generation is as good as any"
    );
    assert!(!record.recycle(&mut generation));
    record.release(5);
    assert!(record.recycle(&mut generation));
    assert_eq!(generation, u64::MAX);
    assert_eq!(
        record.attach(5, u64::MAX),
        Err(Refused::Stale),
        "no descriptor names a closed chunk"
    );
    generation = published_after(generation);
    record.publish(generation, PLACE);
    assert_eq!(record.attach(5, u64::MAX - 1), Err(Refused::Stale));
    assert_eq!(record.attach(5, 0), Err(Refused::Stale));
    assert_eq!(record.attach(5, generation), Ok(PLACE));
}
