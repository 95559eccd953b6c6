//! ROS 2 and zenoh: what changes for nodes of `rmw_zenoh_cpp`, and for programs beside them.
//!
//! # Which way
//!
//! | you have | use |
//! |---|---|
//! | a driver or a bridge that need not be a ROS node | zenoh with `shm-pool-zenoh`: [a camera without ROS](#a-camera-without-ros) |
//! | nodes that publish through `rclcpp` or `rclpy` | [zenoh's own memory](#nodes): this library takes no part |
//! | two nodes with large frames between them, on one machine | the [channels](#channels-beside-ros) of this library, beside ROS |
//! | nodes that you can put into one process | `rclcpp`'s intra-process communication, which passes a pointer |
//!
//! # Nodes
//!
//! A node's `publish` writes the message, as CDR, to memory that `rmw_zenoh_cpp` chooses. Since its
//! releases of 2026 (Humble 0.1.9, Jazzy 0.2.10, Kilted 0.6.7, Lyrical 0.10.3) that is the memory of the
//! node's zenoh session, which zenoh makes from its configuration. So a node cannot publish from a pool of
//! `shm-pool-zenoh`. It can receive from one; in shared memory only if its zenoh has
//! [the same format](#a-camera-without-ros).
//!
//! Shared memory is off by default there. Switch it on in all nodes and in the router, and set the size
//! of each publishing process's memory:
//!
//! ```console
//! $ shm=transport/shared_memory
//! $ export ZENOH_CONFIG_OVERRIDE="$shm/enabled=true;$shm/transport_optimization/pool_size=67108864"
//! ```
//!
//! | in `rmw_zenoh_cpp`'s configuration | default |
//! |---|---|
//! | `transport/shared_memory/enabled` | `false` |
//! | `transport/shared_memory/transport_optimization/enabled` | `true`; without it, nodes do not publish in shared memory |
//! | `…/transport_optimization/pool_size` | 48 MiB for each process |
//! | `…/transport_optimization/message_size_threshold` | 512 bytes; shorter messages are copied to the socket |
//!
//! A message that finds no room in that memory goes through the socket. So do the first ones, while zenoh
//! makes the memory; and all of them if the node may not lock `pool_size`, which zenoh logs once.
//!
//! Older releases make memory of their own. Its size is that of `ZENOH_SHM_ALLOC_SIZE`, and the threshold
//! that of `ZENOH_SHM_MESSAGE_SIZE_THRESHOLD`. In the new releases these variables override the
//! configuration: unset them.
//!
//! A *loaned message* of `rclcpp` is a message that the middleware allocates. `rmw_zenoh_cpp` has none:
//! `can_loan_messages` returns false, and `borrow_loaned_message` allocates from the heap. So each
//! message is copied twice, when it is written as CDR and when it is read, and without shared memory
//! also into the socket and out of it.
//!
//! # A camera without ROS
//!
//! Nodes of `rmw_zenoh_cpp` receive what any zenoh program publishes under the right key:
//!
//! | | what `rmw_zenoh_cpp` expects |
//! |---|---|
//! | key | `domain/topic/type/hash`, the topic without its first slash |
//! | type | `sensor_msgs::msg::dds_::Image_` for `sensor_msgs/msg/Image` |
//! | hash | the one of the type's definition, under `type_hashes` in `share/sensor_msgs/msg/Image.json` of the ROS installation; in Humble `TypeHashNotSupported` |
//! | payload | CDR, after the four bytes 0, 1, 0, 0 |
//! | attachment | the number and the time of the message, and the id of its publisher, serialized as by `zenoh-ext`; `rmw_zenoh_cpp` before 0.1.2 (Humble), 0.2.4 (Jazzy) and 0.6.0 expects names between them |
//!
//! This program is a driver that captures each frame into shared memory, which saves the first of the
//! two copies, and the heap. It needs the crates `shm-pool-zenoh` and `zenoh`.
//!
//! **Today its images are copied on their way to ROS.** The releases of `rmw_zenoh_cpp` up to July 2026
//! contain zenoh 1.8, whose shared memory has format 1. `shm-pool-zenoh` has zenoh 1.10, and format 2.
//! Between them zenoh copies each message to the socket, and none is lost. Nodes share the memory once
//! `rmw_zenoh_cpp` contains zenoh 1.10. Programs that use zenoh 1.10 directly share it now.
//!
//! ```text
//! //! A camera that ROS 2 nodes of `rmw_zenoh_cpp` receive, without ROS in this program.
//! //!
//! //! It publishes `sensor_msgs/msg/Image` on the topic `/camera/image_raw` of domain 0. Each frame is
//! //! captured into shared memory, behind the other fields of its message.
//!
//! #![forbid(unsafe_code)]
//!
//! use shm_pool_zenoh::{BufferPool, PoolBackend};
//! use std::thread;
//! use std::time::{Duration, SystemTime};
//! use zenoh::qos::CongestionControl;
//! use zenoh::{Config, Result, Wait};
//!
//! const TYPE: &str = "sensor_msgs::msg::dds_::Image_";
//! /// The hash of the type's definition. In Humble, which has none: `TypeHashNotSupported`.
//! const HASH: &str = "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47";
//! const WIDTH: u32 = 640;
//! const HEIGHT: u32 = 480;
//! const STEP: u32 = 3 * WIDTH;
//! const PERIOD: Duration = Duration::from_millis(33);
//!
//! fn main() -> Result<()> {
//!     zenoh::init_log_from_env_or("error");
//!     let router = std::env::args().nth(1);
//!     let router = router.as_deref().unwrap_or("tcp/localhost:7447");
//!     let mut config = Config::default();
//!     config.insert_json5("connect/endpoints", &format!("[{router:?}]"))?;
//!     config.insert_json5("listen/endpoints", r#"["tcp/localhost:0"]"#)?;
//!     config.insert_json5("scouting/multicast/enabled", "false")?;
//!     let session = zenoh::open(config).wait()?;
//!
//!     // Domain 0.
//!     let publisher = session
//!         .declare_publisher(format!("0/camera/image_raw/{TYPE}/{HASH}"))
//!         .congestion_control(CongestionControl::Drop)
//!         .wait()?;
//!     // By which ROS lists the node `camera` and its publisher, with the default QoS of a depth of 10.
//!     let zid = session.zid();
//!     let token =
//!         format!("@ros2_lv/0/{zid}/0/1/MP/%/%/camera/%camera%image_raw/{TYPE}/{HASH}/::,10:,:,:,,");
//!     let _listed = session.liveliness().declare_token(token).wait()?;
//!     // Nodes tell publishers apart by it, so a session has one publisher of images.
//!     let id = zid.to_le_bytes();
//!
//!     // Four frames of 900 KiB, with what is not pixels.
//!     let pool = BufferPool::new(&PoolBackend::builder().max_bytes(4 << 20).build()?);
//!     for number in 0_i64.. {
//!         let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
//!         let fields = fields(time);
//!         let len = fields.len() + (STEP * HEIGHT) as usize;
//!         match pool.alloc_timeout(len, PERIOD) {
//!             Ok(mut message) => {
//!                 message[..fields.len()].copy_from_slice(&fields);
//!                 capture(&mut message[fields.len()..], number);
//!                 let attachment = attachment(number, time, id);
//!                 publisher.put(message).attachment(attachment).wait()?;
//!             }
//!             // The nodes still hold all four.
//!             Err(error) => eprintln!("frame {number} is skipped: {error}"),
//!         }
//!         thread::sleep(PERIOD);
//!     }
//!     Ok(())
//! }
//!
//! /// Stands for a camera's driver, which writes to the caller's memory.
//! fn capture(pixels: &mut [u8], number: i64) {
//!     pixels.fill(number as u8);
//! }
//!
//! /// The fields of an image up to its pixels, in CDR: little-endian, each number aligned to its size.
//! fn fields(time: Duration) -> Vec<u8> {
//!     let mut cdr = Cdr::default();
//!     cdr.u32(time.as_secs() as u32);
//!     cdr.u32(time.subsec_nanos());
//!     cdr.string("camera");
//!     cdr.u32(HEIGHT);
//!     cdr.u32(WIDTH);
//!     cdr.string("rgb8");
//!     cdr.bytes.push(0); // is_bigendian
//!     cdr.u32(STEP);
//!     cdr.u32(STEP * HEIGHT); // how many bytes follow
//!
//!     let mut message = vec![0, 1, 0, 0]; // this is CDR, little-endian
//!     message.extend(cdr.bytes);
//!     message
//! }
//!
//! #[derive(Default)]
//! struct Cdr {
//!     bytes: Vec<u8>,
//! }
//!
//! impl Cdr {
//!     fn u32(&mut self, value: u32) {
//!         self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
//!         self.bytes.extend(value.to_le_bytes());
//!     }
//!
//!     fn string(&mut self, text: &str) {
//!         self.u32(text.len() as u32 + 1);
//!         self.bytes.extend(text.as_bytes());
//!         self.bytes.push(0);
//!     }
//! }
//!
//! /// What `rmw_zenoh_cpp` sends beside each message: its number, its time, and the publisher's id.
//! fn attachment(number: i64, time: Duration, id: [u8; 16]) -> Vec<u8> {
//!     let mut attachment = Vec::new();
//!     attachment.extend(number.to_le_bytes());
//!     attachment.extend((time.as_nanos() as i64).to_le_bytes());
//!     attachment.push(id.len() as u8);
//!     attachment.extend(id);
//!     attachment
//! }
//! ```
//!
//! It is the example `ros2_image` of `shm-pool-zenoh`. In three terminals:
//!
//! ```console
//! $ export ZENOH_CONFIG_OVERRIDE='transport/shared_memory/enabled=true'
//! $ ros2 run rmw_zenoh_cpp rmw_zenohd
//! ```
//!
//! ```console
//! $ cargo run --release -p shm-pool-zenoh --example ros2_image
//! ```
//!
//! ```console
//! $ export ZENOH_CONFIG_OVERRIDE='transport/shared_memory/enabled=true' RMW_IMPLEMENTATION=rmw_zenoh_cpp
//! $ ros2 daemon stop
//! $ ros2 topic hz /camera/image_raw
//! ```
//!
//! Without ROS, `cargo install zenohd@1.10.2` has a router, and zenoh's example `z_sub_shm -k
//! '0/camera/image_raw/**'` receives. Without a router the program waits and says nothing; with
//! `RUST_LOG=zenoh=info` zenoh says why.
//!
//! * **ROS lists it by its liveliness token.** Without that, subscriptions receive all the same, but `ros2
//!   topic list` does not show the topic, and `ros2 topic hz` waits for ever.
//! * **A type whose definition changed has another hash,** and its subscriptions receive nothing.
//! * **Nodes in other containers** need [the same /dev/shm](super::deploying#containers), too.
//! * **Ctrl-C leaves its objects in /dev/shm.** The next zenoh program on the machine removes them.
//! * **A node that is slow holds its frames** until it has read them. Give the pool as many frames as
//!   all subscriptions may have queued, and decide what to do when there is none, as the program does.
//!
//! # Receivers
//!
//! Every process that receives in shared memory maps the segments of every publisher, and locks them
//! into memory, when their first message arrives. So do routers. zenoh never unmaps them while the
//! process runs.
//!
//! | for each publishing process | a receiver locks |
//! |---|---|
//! | a node of `rmw_zenoh_cpp` | its `pool_size` |
//! | a pool of `shm-pool-zenoh` | at most its `max_bytes` |
//! | either | 1.25 MiB of zenoh's metadata |
//!
//! * **`ulimit -l` must allow the sum,** and what the process publishes itself. The usual 8 MiB are less
//!   than one node's 48. In a container set `--ulimit memlock=-1`, in a unit `LimitMEMLOCK=infinity`.
//! * **A receiver that may not lock a segment stops the publisher.** It loses each message in it, never
//!   releases one, and zenoh logs that at its debug level only. So the pool runs empty, and no receiver
//!   gets anything: the program above skips every frame. That lasts, also after that receiver has exited,
//!   until the publisher restarts or calls `ShmProvider::garbage_collect_unsafe`.
//! * **A publisher that restarts counts twice,** as long as its receivers run. Count the restarts that
//!   you expect, or restart receivers with their publishers.
//! * **/dev/shm must hold the pools of all publishers.** A node takes its `pool_size` at once; a pool of
//!   `shm-pool-zenoh` takes what its messages need. Docker's default is 64 MiB: `--shm-size=1g`.
//!
//! # Channels beside ROS
//!
//! A node may open a [`Publisher`](crate::channel::Publisher) or a
//! [`Subscriber`](crate::channel::Subscriber) of this library: in C++ with `shm_pool.hpp`, in Python
//! with the module `shm_pool`. Send the frame there and everything else through ROS, for example a
//! `sensor_msgs/msg/CameraInfo` with the same time. Then the frame is never copied, and:
//!
//! | | a topic of `rmw_zenoh_cpp` | a channel |
//! |---|---|---|
//! | copies of a frame | two | none: captured and read in place |
//! | locked memory | all segments, in each receiver | none, unless [asked for](super::embedded) |
//! | a publisher restarts | receivers keep its memory until they exit | receivers release it |
//! | recording, `ros2 topic echo`, other machines | yes | no: publish what is recorded on a topic, too |
//! | types | ROS messages | bytes, or types of a fixed layout |
//!
//! [`choosing`](super::choosing) shows the ways to send, and [`coming_from`](super::coming_from) the
//! counterparts of calls.
#![forbid(unsafe_code)]
