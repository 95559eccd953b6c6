//! x
use std::hint::black_box;
use std::time::Instant;
fn time(name: &str, mut f: impl FnMut()) {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let n = 2_000_000u32;
        let t = Instant::now();
        for _ in 0..n {
            f()
        }
        best = best.min(t.elapsed().as_nanos() as f64 / n as f64);
    }
    println!("{name}: {best:.2} ns");
}
fn main() {
    let p = shm_pool::Provider::builder().build().unwrap();
    let q = crossbeam_queue::ArrayQueue::<usize>::new(8);
    q.push(1).unwrap();
    time("array_queue", || {
        let v = black_box(q.pop().unwrap());
        q.push(black_box(v)).unwrap();
    });
    for s in [64usize, 4096, 65536, 1 << 20, 16 << 20] {
        time(&format!("warm {s}"), || {
            black_box(p.alloc(black_box(s)).unwrap());
        });
    }
    let _a = p.alloc(1 << 20).unwrap();
    let b = p.alloc(1 << 20).unwrap();
    let c = p.alloc(1 << 20).unwrap();
    drop(b);
    drop(c);
    time("malloc 1MiB", || unsafe { let p=libc::malloc(black_box(1<<20)); black_box(p); libc::free(p); });
 time("malloc 4K", || unsafe { let p=libc::malloc(black_box(4096)); black_box(p); libc::free(p); });
 let m=parking_lot::Mutex::new(0u64); time("parking_lot x2", ||{ *m.lock()+=1; *m.lock()+=1; });
 let m=parking_lot::RwLock::new(0u64); time("rwlock read", ||{ black_box(*m.read()); });
 let c=shm_pool::Client::new();
 let k=p.alloc(1<<20).unwrap().freeze(); let d=k.descriptor().unwrap();
 time("attach+drop", ||{ black_box(c.attach(&black_box(d)).unwrap()); });
 time("alloc,descriptor,drop", ||{ let b=p.alloc(black_box(1<<20)).unwrap().freeze(); black_box(b.descriptor().unwrap()); });
 let peer=c.connect(p.id()).unwrap();
 time("grant", ||{ let b=p.alloc(black_box(1<<20)).unwrap().freeze(); let d=b.grant(peer).unwrap(); drop(b); black_box(c.attach(&d).unwrap()); });

    time("shared", || {
        let b = p.alloc(black_box(1 << 20)).unwrap().freeze();
        let d = b.descriptor().unwrap();
        let v = c.attach(&black_box(d)).unwrap();
        black_box(&v);
        drop(v);
        drop(b);
    });
    time("shared, view last", || {
        let b = p.alloc(black_box(1 << 20)).unwrap().freeze();
        let d = b.descriptor().unwrap();
        let v = c.attach(&black_box(d)).unwrap();
        black_box(&v);
        drop(b);
        drop(v);
    });
    println!("{:?}", p.stats().segments_created);
}
