//! A camera that ROS 2 nodes of `rmw_zenoh_cpp` receive, without ROS in this program.
//!
//! It publishes `sensor_msgs/msg/Image` on the topic `/camera/image_raw` of domain 0. Each frame is
//! captured into shared memory, behind the other fields of its message.

#![forbid(unsafe_code)]

use shm_pool_zenoh::{BufferPool, PoolBackend};
use std::thread;
use std::time::{Duration, SystemTime};
use zenoh::qos::CongestionControl;
use zenoh::{Config, Result, Wait};

const TYPE: &str = "sensor_msgs::msg::dds_::Image_";
/// The hash of the type's definition. In Humble, which has none: `TypeHashNotSupported`.
const HASH: &str = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47";
const WIDTH: u32 = 640;
const HEIGHT: u32 = 480;
const STEP: u32 = 3 * WIDTH;
const PERIOD: Duration = Duration::from_millis(33);

fn main() -> Result<()> {
    zenoh::init_log_from_env_or("error");
    let router = std::env::args().nth(1);
    let router = router.as_deref().unwrap_or("tcp/localhost:7447");
    let mut config = Config::default();
    config.insert_json5("connect/endpoints", &format!("[{router:?}]"))?;
    config.insert_json5("listen/endpoints", r#"["tcp/localhost:0"]"#)?;
    config.insert_json5("scouting/multicast/enabled", "false")?;
    let session = zenoh::open(config).wait()?;

    // Domain 0.
    let publisher = session
        .declare_publisher(format!("0/camera/image_raw/{TYPE}/{HASH}"))
        .congestion_control(CongestionControl::Drop)
        .wait()?;
    // By which ROS lists the node `camera` and its publisher, with the default QoS of a depth of 10.
    let zid = session.zid();
    let token =
        format!("@ros2_lv/0/{zid}/0/1/MP/%/%/camera/%camera%image_raw/{TYPE}/{HASH}/::,10:,:,:,,");
    let _listed = session.liveliness().declare_token(token).wait()?;
    // Nodes tell publishers apart by it, so a session has one publisher of images.
    let id = zid.to_le_bytes();

    // Four frames of 900 KiB, with what is not pixels.
    let pool = BufferPool::new(&PoolBackend::builder().max_bytes(4 << 20).build()?);
    for number in 0_i64.. {
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let fields = fields(time);
        let len = fields.len() + (STEP * HEIGHT) as usize;
        match pool.alloc_timeout(len, PERIOD) {
            Ok(mut message) => {
                message[..fields.len()].copy_from_slice(&fields);
                capture(&mut message[fields.len()..], number);
                let attachment = attachment(number, time, id);
                publisher.put(message).attachment(attachment).wait()?;
            }
            // The nodes still hold all four.
            Err(error) => eprintln!("frame {number} is skipped: {error}"),
        }
        thread::sleep(PERIOD);
    }
    Ok(())
}

/// Stands for a camera's driver, which writes to the caller's memory.
fn capture(pixels: &mut [u8], number: i64) {
    pixels.fill(number as u8);
}

/// The fields of an image up to its pixels, in CDR: little-endian, each number aligned to its size.
fn fields(time: Duration) -> Vec<u8> {
    let mut cdr = Cdr::default();
    cdr.u32(time.as_secs() as u32);
    cdr.u32(time.subsec_nanos());
    cdr.string("camera");
    cdr.u32(HEIGHT);
    cdr.u32(WIDTH);
    cdr.string("rgb8");
    cdr.bytes.push(0); // is_bigendian
    cdr.u32(STEP);
    cdr.u32(STEP * HEIGHT); // how many bytes follow

    let mut message = vec![0, 1, 0, 0]; // this is CDR, little-endian
    message.extend(cdr.bytes);
    message
}

#[derive(Default)]
struct Cdr {
    bytes: Vec<u8>,
}

impl Cdr {
    fn u32(&mut self, value: u32) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self.bytes.extend(value.to_le_bytes());
    }

    fn string(&mut self, text: &str) {
        self.u32(text.len() as u32 + 1);
        self.bytes.extend(text.as_bytes());
        self.bytes.push(0);
    }
}

/// What `rmw_zenoh_cpp` sends beside each message: its number, its time, and the publisher's id.
fn attachment(number: i64, time: Duration, id: [u8; 16]) -> Vec<u8> {
    let mut attachment = Vec::new();
    attachment.extend(number.to_le_bytes());
    attachment.extend((time.as_nanos() as i64).to_le_bytes());
    attachment.push(id.len() as u8);
    attachment.extend(id);
    attachment
}
