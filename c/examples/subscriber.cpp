// Receives what `publisher` sends, before and after it is restarted. Run it in one terminal, and `publisher`
// in another, in any order. README.md says how to build both.
#include <shm_pool.hpp>

#include <cstring>
#include <exception>
#include <iostream>

int main() try {
    shm_pool::subscriber subscriber("time");
    while (auto message = subscriber.recv()) {
        std::uint64_t seconds;
        std::memcpy(&seconds, message->data(), sizeof seconds); // read in place
        std::cout << message->size() << " bytes, at " << seconds << std::endl;
    }
} catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << '\n';
    return 1;
}
