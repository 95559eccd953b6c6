//! Tracing a child with ptrace. The child marks the operation under test; the tracer runs the child
//! in steps. This is the only unsafe code in this directory.
//!
//! A mark is a SIGSTOP that the child sends itself with a bare system call. No other event causes
//! that stop, so the tracer recognises it. It does not deliver the signal.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::AtomicU64;

// ---- the child's side --------------------------------------------------------------------------

/// Lets the thread that started this process trace the calling thread, and returns its thread id.
pub(crate) fn let_parent_trace() -> io::Result<u64> {
    // SAFETY: this request takes no addresses.
    unsafe { ptrace(libc::PTRACE_TRACEME, 0, 0, ptr::null_mut()) }?;
    Ok(this_thread() as u64)
}

/// Runs `operation` between two marks.
pub(crate) fn marked<T>(operation: impl FnOnce() -> T) -> T {
    mark();
    let result = operation();
    mark();
    result
}

#[inline(never)]
fn mark() {
    // SAFETY: numbers only. It stops only this thread: the tracer does not deliver the signal.
    unsafe {
        libc::syscall(
            libc::SYS_tgkill,
            std::process::id(),
            this_thread(),
            libc::SIGSTOP,
        )
    };
}

pub(crate) fn this_thread() -> libc::pid_t {
    // SAFETY: no preconditions.
    unsafe { libc::gettid() }
}

/// Keeps this thread, and the children that it starts, on its current processor. A step switches
/// between the two twice, which takes half the time on one processor.
pub(crate) fn stay_on_one_processor() {
    // SAFETY: a processor set is plain bits, and all zeros is the empty set.
    let mut processors: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: no preconditions.
    let here = unsafe { libc::sched_getcpu() };
    // SAFETY: it sets one bit of a plain array, and libc checks the bounds.
    unsafe { libc::CPU_SET(usize::try_from(here).unwrap_or(0), &mut processors) };
    // SAFETY: a valid set, with its own size. If the call fails, steps only take longer.
    unsafe { libc::sched_setaffinity(0, size_of_val(&processors), &processors) };
}

// ---- the tracer's side -------------------------------------------------------------------------

/// The reason why the child has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It is at a mark.
    Mark,
    /// It has executed one instruction, or hit a breakpoint.
    Trap,
    /// It is at the beginning or the end of a system call.
    Call,
    /// It has exited, or received an unexpected signal.
    Lost(i32),
}

/// How far the child is to run.
#[derive(Clone, Copy)]
pub(crate) enum Pace {
    /// By one instruction.
    Step,
    /// To the beginning or the end of the next system call.
    Call,
    /// To a mark or a breakpoint.
    Run,
}

/// A traced child. All requests must come from the thread that started it.
pub(crate) struct Tracee {
    pid: libc::pid_t,
    memory: File,
}

impl Tracee {
    /// Waits until the child, which has called [`let_parent_trace`], is at its first mark. From
    /// then on the child is killed when the tracer exits.
    pub(crate) fn at_first_mark(thread: u64) -> Self {
        let pid = libc::pid_t::try_from(thread).expect("the id of a thread");
        assert_eq!(wait(pid), Stop::Mark, "the first stop of the child");
        let options = libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_EXITKILL;
        // SAFETY: this request takes numbers, no addresses. It fails unless the child has stopped.
        unsafe { ptrace(libc::PTRACE_SETOPTIONS, pid, 0, options as usize as *mut _) }
            .expect("options of a traced child");
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"));
        Self {
            pid,
            memory: memory.expect("a tracer may write its child's memory"),
        }
    }

    /// Lets the child run, and waits until it stops again.
    pub(crate) fn go(&self, pace: Pace) -> Stop {
        let request = match pace {
            Pace::Step => libc::PTRACE_SINGLESTEP,
            Pace::Call => libc::PTRACE_SYSCALL,
            Pace::Run => libc::PTRACE_CONT,
        };
        self.resume(request);
        wait(self.pid)
    }

    fn resume(&self, request: impl Into<libc::c_long>) {
        // SAFETY: this request takes no addresses, and a null argument delivers no signal. It fails
        // unless the child has stopped.
        unsafe { ptrace(request, self.pid, 0, ptr::null_mut()) }
            .expect("a child that stands still");
    }

    /// Resumes the child without waiting for it.
    pub(crate) fn continue_running(&self) {
        self.resume(libc::PTRACE_CONT);
    }

    pub(crate) fn registers(&self) -> Registers {
        // SAFETY: the registers are plain numbers, for which zero is a valid value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.transfer(libc::PTRACE_GETREGSET, NT_PRSTATUS, &mut registers);
        Registers(registers)
    }

    pub(crate) fn set_registers(&self, registers: Registers) {
        let Registers(mut registers) = registers;
        self.transfer(libc::PTRACE_SETREGSET, NT_PRSTATUS, &mut registers);
    }

    /// Makes the kernel skip the system call that the child is entering.
    pub(crate) fn skip_call(&self) {
        #[cfg(target_arch = "x86_64")]
        {
            let Registers(mut registers) = self.registers();
            registers.orig_rax = u64::MAX;
            self.set_registers(Registers(registers));
        }
        #[cfg(target_arch = "aarch64")]
        self.transfer(libc::PTRACE_SETREGSET, NT_ARM_SYSTEM_CALL, &mut -1_i32);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        compile_error!("how is a system call skipped here?");
    }

    fn transfer<T>(&self, request: impl Into<libc::c_long>, set: usize, value: &mut T) {
        let base = (value as *mut T).cast();
        let mut area = libc::iovec {
            iov_base: base,
            iov_len: size_of::<T>(),
        };
        // SAFETY: the area is exactly `value`, a register structure or an `i32`: any bits are
        // valid. The request fails unless the child has stopped.
        unsafe {
            ptrace(
                request,
                self.pid,
                set,
                (&mut area as *mut libc::iovec).cast(),
            )
        }
        .expect("registers of a child that stands still");
    }

    /// Returns the address of the next instruction.
    pub(crate) fn ip(&self) -> u64 {
        self.registers().ip()
    }

    /// Runs the child to the instruction at `address`, past it `passes` times, and to it once more.
    /// Returns `false` if the child does not get there; it is then at a mark, or lost.
    pub(crate) fn run_to(&self, address: u64, passes: usize) -> bool {
        let mut original = [0; BREAKPOINT.len()];
        self.memory
            .read_exact_at(&mut original, address)
            .expect("code of the child");
        for pass in 0..=passes {
            if pass > 0 && self.go(Pace::Step) != Stop::Trap {
                return false;
            }
            self.memory
                .write_all_at(&BREAKPOINT, address)
                .expect("code of the child");
            if self.go(Pace::Run) != Stop::Trap {
                return false;
            }
            let registers = self.registers();
            assert_eq!(
                registers.ip(),
                address + BREAKPOINT_ADVANCES,
                "the breakpoint that was set"
            );
            self.memory
                .write_all_at(&original, address)
                .expect("code of the child");
            self.set_registers(registers.at(address));
        }
        true
    }

    /// Reads a NUL-terminated string from the child's memory.
    pub(crate) fn text(&self, address: u64) -> String {
        let mut text = Vec::new();
        let mut byte = [0];
        for at in address.. {
            if self.memory.read_exact_at(&mut byte, at).is_err() || byte[0] == 0 {
                break;
            }
            text.push(byte[0]);
        }
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Returns the value that a variable of this program has in the child, which runs the same
    /// program.
    pub(crate) fn value_of(&self, variable: &'static AtomicU64) -> u64 {
        let offset = variable.as_ptr() as u64 - Program::of_process("self").base;
        let mut bytes = [0; 8];
        self.memory
            .read_exact_at(&mut bytes, self.program().base + offset)
            .expect("a variable of the child");
        u64::from_ne_bytes(bytes)
    }

    /// Returns the location of the child's program in its memory.
    pub(crate) fn program(&self) -> Program {
        Program::of_process(&self.pid.to_string())
    }
}

/// The addresses of a program, without those of its libraries.
pub(crate) struct Program {
    /// The address of the first byte. Code is identified by its distance from here, which is the
    /// same in every process.
    pub(crate) base: u64,
    code: Range<u64>,
}

impl Program {
    /// `process` is the name of its directory in /proc.
    fn of_process(process: &str) -> Self {
        let exe = fs::read_link(format!("/proc/{process}/exe")).expect("/proc");
        let maps = fs::read_to_string(format!("/proc/{process}/maps")).expect("/proc");
        Self::parse(&maps, &exe)
    }

    fn parse(maps: &str, exe: &Path) -> Self {
        let exe = exe.to_str().expect("a path in UTF-8");
        let mut ranges = Vec::new();
        for line in maps.lines() {
            if !line.ends_with(exe) {
                continue;
            }
            let (range, rest) = line.split_once(' ').expect("a range and what it is");
            let (start, end) = range.split_once('-').expect("two addresses");
            let number = |text| u64::from_str_radix(text, 16).expect("an address");
            ranges.push((number(start)..number(end), rest.as_bytes()[2] == b'x'));
        }
        let base = ranges.first().expect("a mapped program").0.start;
        let code = ranges
            .into_iter()
            .find(|(_, is_code)| *is_code)
            .expect("a program has code")
            .0;
        Self { base, code }
    }

    /// Returns `true` if `address` is in the program's code.
    pub(crate) fn contains(&self, address: u64) -> bool {
        self.code.contains(&address)
    }
}

/// The kernel's name for the set of general registers.
const NT_PRSTATUS: usize = 1;

/// The kernel's name for the system call number, where it is not in the general registers.
#[cfg(target_arch = "aarch64")]
const NT_ARM_SYSTEM_CALL: usize = 0x404;

/// An instruction that traps. `BREAKPOINT_ADVANCES` is how far the instruction pointer is beyond it
/// after the trap.
#[cfg(target_arch = "x86_64")]
const BREAKPOINT: [u8; 1] = [0xcc];
#[cfg(target_arch = "x86_64")]
const BREAKPOINT_ADVANCES: u64 = 1;
#[cfg(target_arch = "aarch64")]
const BREAKPOINT: [u8; 4] = 0xd420_0000_u32.to_le_bytes();
#[cfg(target_arch = "aarch64")]
const BREAKPOINT_ADVANCES: u64 = 0;

/// The registers of a child that has stopped.
#[derive(Clone, Copy)]
pub(crate) struct Registers(libc::user_regs_struct);

#[cfg(target_arch = "x86_64")]
impl Registers {
    pub(crate) fn ip(&self) -> u64 {
        self.0.rip
    }

    fn at(mut self, address: u64) -> Self {
        self.0.rip = address;
        self
    }

    /// Returns the number of the system call that begins here.
    pub(crate) fn call(&self) -> libc::c_long {
        self.0.orig_rax as libc::c_long
    }

    /// Returns the first five arguments of that call.
    pub(crate) fn arguments(&self) -> [u64; 5] {
        [self.0.rdi, self.0.rsi, self.0.rdx, self.0.r10, self.0.r8]
    }

    /// Returns these registers, but with another result of the system call that ends here.
    pub(crate) fn returning(mut self, result: i64) -> Self {
        self.0.rax = result as u64;
        self
    }
}

#[cfg(target_arch = "aarch64")]
impl Registers {
    pub(crate) fn ip(&self) -> u64 {
        self.0.pc
    }

    fn at(mut self, address: u64) -> Self {
        self.0.pc = address;
        self
    }

    /// Returns the number of the system call that begins here.
    pub(crate) fn call(&self) -> libc::c_long {
        self.0.regs[8] as libc::c_long
    }

    /// Returns the first five arguments of that call.
    pub(crate) fn arguments(&self) -> [u64; 5] {
        std::array::from_fn(|at| self.0.regs[at])
    }

    /// Returns these registers, but with another result of the system call that ends here.
    pub(crate) fn returning(mut self, result: i64) -> Self {
        self.0.regs[0] = result as u64;
        self
    }
}

/// Sends SIGKILL to the process of a traced thread, and returns when the thread is dead. Only then
/// can the process be waited for: a dead traced thread stays until its tracer has reaped it.
pub(crate) fn kill(thread: u64) {
    let pid = thread as libc::pid_t;
    // SAFETY: numbers only. The id belongs to the thread until it is reaped; if it has been, the
    // test is failing already.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    // Earlier stops may be reported first. An error means that the thread has already been reaped.
    while wait_status(pid).is_ok_and(|status| libc::WIFSTOPPED(status)) {}
}

/// Makes a request. Its number has another type in musl than in glibc.
///
/// # Safety
///
/// `address` and `data` must be what the request takes.
unsafe fn ptrace(
    request: impl Into<libc::c_long>,
    pid: libc::pid_t,
    address: usize,
    data: *mut libc::c_void,
) -> io::Result<()> {
    // SAFETY: as the caller ensures.
    check(unsafe {
        libc::syscall(
            libc::SYS_ptrace,
            request.into(),
            libc::c_long::from(pid),
            address,
            data,
        )
    })
}

fn wait(pid: libc::pid_t) -> Stop {
    let status = wait_status(pid).expect("a child of this thread");
    if !libc::WIFSTOPPED(status) {
        return Stop::Lost(status);
    }
    match libc::WSTOPSIG(status) {
        libc::SIGSTOP => Stop::Mark,
        libc::SIGTRAP => Stop::Trap,
        signal if signal == libc::SIGTRAP | 0x80 => Stop::Call,
        _ => Stop::Lost(status),
    }
}

fn wait_status(pid: libc::pid_t) -> io::Result<i32> {
    let mut status = 0;
    // SAFETY: `status` is a live local that the kernel may write to.
    check(unsafe { libc::waitpid(pid, &mut status, libc::__WALL) }.into())?;
    Ok(status)
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
