"""Reports of providers, clients and channels."""

import dataclasses
import os
import pickle
import typing

import pytest

import shm_pool
from shm_pool import Publisher, Sender, Subscriber, inspect
from shm_pool.inspect import Inspector, ObjectState


@pytest.fixture
def inspector(prefix):
    return Inspector(prefix)


def test_providers(provider, client, inspector):
    peer = client.connect(provider.id)
    with provider.alloc(1000) as buffer:
        message = client.attach(buffer.grant(peer))
        report = inspector.report()
    [found] = report.providers
    assert (found.id, found.state, found.owner.id, found.problem) == (provider.id, ObjectState.ALIVE, os.getpid(), None)
    assert found.bytes_leased == 1000 and found.leased[0].messages == 1
    assert [os.getpid()] == [process.id for process in found.segments[0].mapped_by]
    [client_report] = found.peers
    assert (client_report.id, client_report.messages, client_report.bytes) == (peer, 1, 1000)
    assert client_report.is_alive and client_report.process.id == os.getpid()
    assert client_report.oldest_lease >= 0
    assert report.channels == [] and report.orphans.objects == 0
    message.release()
    assert inspector.report().providers[0].bytes_leased == 0


def test_removed(provider, prefix, inspector):
    assert inspector.report().removed == []
    path = f"/dev/shm/{prefix}.{provider.id:016x}.ctl"
    os.remove(path)
    report = inspector.report()
    [removed] = report.removed
    assert (removed.path, removed.process.id) == (path, os.getpid())
    assert report.providers == []


def test_channels(provider, prefix, inspector):
    pose = shm_pool.MessageType("robot.Pose", 1, 24)
    with (
        Publisher(provider, "camera", message_type=pose) as camera,
        Subscriber("camera", prefix, capacity=7, on_full="drop_newest") as subscriber,
        Sender(provider, "commands"),
    ):
        camera.send(bytes(1000))
        found, commands = inspector.report().channels  # by name
        assert (found.name, found.prefix, found.provider) == ("camera", prefix, provider.id)
        assert found.state == "alive" and found.sender.id == os.getpid()
        assert found.message_type == pose and commands.message_type is None
        [receiver] = found.receivers
        assert (receiver.capacity, receiver.on_full) == (7, shm_pool.OnFull.DROP_NEWEST)
        assert (receiver.sent, receiver.waiting, receiver.borrowed, receiver.bytes_borrowed) == (1, 1, 1, 1000)
        assert receiver.is_connected and receiver.process.id == os.getpid()
        subscriber.recv().release()
        assert inspector.report().channels[0].receivers[0].waiting == 0


def test_dead(prefix, python, inspector):
    child = python(
        """
import shm_pool, sys
provider = shm_pool.Provider(namespace=sys.argv[1])
publisher = shm_pool.Publisher(provider, "camera")
print("made")
input()
""",
        prefix,
    )
    child.line()
    assert inspector.report().providers[0].owner.id == child.process.pid
    child.kill()
    report = inspector.report()
    [provider], [channel] = report.providers, report.channels
    assert (provider.state, provider.owner, channel.state) == (ObjectState.DEAD, None, ObjectState.DEAD)
    assert report.orphans.objects > 0 and provider.is_orphan and channel.is_orphan


def test_fields_are_of_their_types(provider, prefix, inspector):
    """The dataclasses are made by Rust, which does not check their types."""

    def check(value):
        types = typing.get_type_hints(type(value))
        for field in dataclasses.fields(value):
            part = getattr(value, field.name)
            expected = types[field.name]
            if typing.get_origin(expected) is list:
                [item] = typing.get_args(expected)
                assert isinstance(part, list) and all(isinstance(each, item) for each in part)
                for each in part:
                    check(each)
            else:
                assert isinstance(part, expected), f"{type(value).__name__}.{field.name}"

    pose = shm_pool.MessageType("robot.Pose", 1, 24, align=8)
    with Publisher(provider, "camera", message_type=pose) as camera, Subscriber("camera", prefix):
        camera.send(bytes(1000))
        report = inspector.report()
    check(report)
    [channel] = dataclasses.asdict(report)["channels"]
    assert channel["message_type"] == pose and channel["receivers"][0]["waiting"] == 1
    assert pickle.loads(pickle.dumps(report)) == report


def test_namespaces(prefix, provider):
    assert provider.id in [found.id for found in Inspector().report().providers]
    assert Inspector(prefix + "-other").report().providers == []
    nowhere = Inspector(shm_pool.Namespace(prefix, directory="/no/such/directory"))
    with pytest.raises(shm_pool.SystemCallFailed):
        nowhere.report()


def test_every_class_has_docs():
    for name in inspect.__all__:
        assert getattr(inspect, name).__doc__, name
