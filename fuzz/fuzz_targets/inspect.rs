#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| shm_pool_fuzz::inspect(bytes));
