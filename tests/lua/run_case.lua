-- Reads cases from stdin, a line of JSON each: to start Lua for each one cost more than the case.
-- Of each it loads slicewise.lua anew, makes the calls with stubs of slurmctld's `slurm` table, one
-- after the other, and prints what each did (a line of JSON), then an empty line. The clock that
-- slicewise.lua looks at stands still, however busy the machine is: each look moves it by `tick_s` of
-- the case, a call by `shift_s`. Where slicewise.lua waits for the daemon, it waits for `patience_s` of
-- the call or the case, and for as long as it says where that is 0. A call may begin once a file is
-- there (`after`). Long texts may come once, by name (`texts`): a field that is such a name has that
-- text, and none is printed.
local cjson = require "cjson"
local socket = require "socket"
local unix = require "socket.unix"
local case, now_s, patience_s, told, logged, read_fields

local function stub_of_slurm()
    return {
        SUCCESS = 0,
        ERROR = -1,
        ESLURM_ACCESS_DENIED = 2002,
        ESLURM_ACCOUNTING_POLICY = 2050,
        ESLURM_INVALID_QOS = case.slurm ~= "22.05" and 2066 or nil,
        log_user = function(format, ...) told[#told + 1] = string.format(format, ...) end,
        log_info = function(format, ...) logged[#logged + 1] = string.format(format, ...) end,
        log_error = function(format, ...) io.stderr:write(string.format(format, ...), "\n") end,
    }
end

socket.gettime = function()
    now_s = now_s + (case.tick_s or 0)
    return now_s
end

local function make_patient(methods)
    local settimeout = methods.settimeout
    methods.settimeout = function(stream, left_s, mode)
        return settimeout(stream, left_s > 0 and patience_s > 0 and patience_s or left_s, mode)
    end
end

unix.stream():close()
for _, kind in ipairs { "master", "client" } do
    make_patient(debug.getregistry()["unixstream{" .. kind .. "}"].__index)
end

local function wait_for(path)
    local file = io.open(path)
    while not file do
        socket.sleep(0.01)
        file = io.open(path)
    end
    file:close()
end

-- Slurm gives userdata-like records: writes are kept, forbidden reads end slurmctld.
local function record(fields)
    local values = {}
    for key, value in pairs(fields or {}) do
        values[key] = value ~= cjson.null and (case.texts and case.texts[value] or value) or nil
    end
    return setmetatable({}, {
        __index = function(_, key)
            read_fields[key] = true
            if case.raise_on_read == key then
                error("no field " .. key)
            end
            return values[key]
        end,
        __newindex = function(_, key, value)
            if key == "gres" and value ~= "" then
                -- As slurmctld puts it before a GRES that is set.
                value = (case.slurm == "22.05" and "gres:" or "gres/") .. value
            end
            values[key] = value ~= "" and value or nil
        end,
    }), values
end

local function make(module, call)
    told, logged, read_fields = {}, {}, {}
    if call.after then
        wait_for(call.after)
    end
    patience_s = call.patience_s or case.patience_s
    now_s = now_s + (call.shift_s or 0)
    local job_desc, values = record(call.job_desc)
    local worked_s = os.clock()
    local code
    if call.call == "job_submit" then
        code = module.job_submit(job_desc, case.part_list, call.uid)
    else
        code = module.job_modify(job_desc, record(call.job_rec), case.part_list, call.uid)
    end
    -- An empty table would be an object or a list as cjson likes: joined text is unambiguous.
    return {
        code = code,
        processor_s = os.clock() - worked_s,
        told = table.concat(told, "\n"),
        logged = table.concat(logged, "\n"),
        job_desc = not case.texts and values or nil,
        read_assoc_qos = read_fields.assoc_qos == true,
    }
end

for line in io.lines() do
    case, now_s = cjson.decode(line), 1e9
    slurm = stub_of_slurm()
    local module = dofile(case.module)
    module.configure(case.configure)
    for _, call in ipairs(case.calls) do
        print(cjson.encode(make(module, call)))
    end
    print("")
    io.flush()
    -- Nothing refers to the case's module any more: its connection closes.
    module = nil
    collectgarbage()
end
