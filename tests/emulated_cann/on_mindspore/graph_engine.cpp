// The one piece of the graph engine that must be real for MindSpore to load: a
// registry that static constructors fill.  Everything else in ge:: returns 0.
#include <cstdint>
#include <map>
#include <string>
namespace ge __attribute__((visibility("default"))) {
    struct StatusFactory {
        std::map<uint32_t, std::string> m;
        char pad[256];
        static StatusFactory* Instance();
    };
    StatusFactory* StatusFactory::Instance() {
        static auto* s = new StatusFactory;
        return s;
    }
}  // namespace ge
